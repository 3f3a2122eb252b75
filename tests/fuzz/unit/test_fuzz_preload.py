"""What the preload library reads, under the address and undefined-behaviour sanitizers: its corpus, and damaged."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mptcp_proxy import shim

HERE = Path(__file__).parents[1]
DAMAGED = 15_000
FLAGS = ("-std=gnu11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def replay(directory: Path, sources: Path) -> subprocess.CompletedProcess[str]:
    """Build the target with the library's *sources* and have it take the corpus."""
    program = directory / "replay"
    files = [HERE / "c" / name for name in ("preload.c", "replay.c")]
    subprocess.run(["gcc", *FLAGS, f"-I{sources}", *map(str, files), "-ldl", "-o", str(program)], check=True)
    corpus = sorted(map(str, (HERE / "corpora" / "preload").iterdir()))
    # A preload library of somebody else would come before the sanitizer.
    alone = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(
        [str(program), str(DAMAGED), *corpus], capture_output=True, text=True, timeout=120, check=False, env=alone
    )


@pytest.fixture
def sources(tmp_path: Path, require: Callable[..., None]) -> Path:
    """A copy of the library's sources."""
    require("gcc")
    directory = tmp_path / "shim"
    directory.mkdir()
    for path in Path(shim.__file__).parent.glob("*.[ch]"):
        (directory / path.name).write_text(path.read_text())
    return directory


def test_what_the_library_reads_breaks_nothing(tmp_path: Path, sources: Path) -> None:
    ended = replay(tmp_path, sources)
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("scope.c", "calloc(1, strlen(value) + 1)", "calloc(1, strlen(value))"),
        ("scope.c", "if (!is_own_entry(environment[i]))", "if (environment[i] != NULL)"),
        ("scope.c", "i < OWN_ENTRIES; i++)\n\t\tif (own_entries", "i < OWN_ENTRIES - 1; i++)\n\t\tif (own_entries"),
        ("scope.c", "strlen(path) == length && ", ""),
        ("mptcp_listen.c", "list = end;", "list = end + 1;"),
        ("swap.c", "length >= sizeof(struct sockaddr_in6)", "length > 4"),
        ("swap.c", "length < sizeof address->sa_family", "length < 1"),
        ("connect.c", "word == wanted && ", "word >= wanted && "),
        ("connect.c", "(list[word] != '\\0')", "1"),
        ("connect.c", "s6_addr[12]", "s6_addr[8]"),
        ("connect.c", "#define GOAL_SIZE (INET6_ADDRSTRLEN + 8)", "#define GOAL_SIZE 16"),
        ("connect.c", "if (port == 0)", "if (port < 0)"),
        ("zero_read.c", "size > 0 || ", "size > 9 || "),
        ("zero_read.c", "if (*last == turn)", "if (true)"),
        ("zero_read.c", "\t\tturn++;\n", ""),
        ("zero_read.c", "\t*last = turn;\n", ""),
        ("fair_turns.c", "*length < room ? *length : room", "*length"),
        ("fair_turns.c", "fd >= 0 && fd < DESCRIPTORS ?", "fd >= 0 ?"),
        ("fair_turns.c", "if (port_of(address, length) == 0)", "if (address->sa_family == AF_UNIX)"),
        ("fair_turns.c", "\tplace_of[fd] = 0;\n", ""),
        ("fair_turns.c", "--client->number > 0", "client->number > 0"),
        ("fair_turns.c", "fd < -1 && ", "fd < 0 && "),
        ("fair_turns.c", "share * found <= room ? share : room / found", "share"),
        ("fair_turns.c", "TURN / found > 1 ? TURN / found : 1", "TURN"),
        ("fair_turns.c", "n < accepts && count < most", "n < accepts"),
        ("fair_turns.c", "n < accepts && count < most", "n <= accepts && count < most"),
        ("fair_turns.c", "!listens[fd] || ", ""),
        ("fair_turns.c", " || (events[i].events & EPOLLIN) == 0", ""),
        ("fair_turns.c", "else if (accepts < ACCEPTS)", "else"),
        ("joined_writes.c", "memcpy(joined->bytes + joined->end", "memcpy(joined->bytes"),
        ("joined_writes.c", "joined->first += sent", "joined->first = sent"),
        (
            "joined_writes.c",
            "\t\tsetsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);\n",
            "\t\t(void)at_once;\n",
        ),
        ("joined_writes.c", "\t\t\t\tevents[i].events &= ~EPOLLOUT;\n", "\t\t\t\t;\n"),
        ("joined_writes.c", "\tall_joined[joined->place]->place = joined->place;\n", ""),
        ("joined_writes.c", "\tjoined_of[joined->fd] = NULL;\n", ""),
        ("may_write.c", "\t\tevents |= EPOLLOUT;\n", "\t\t;\n"),
        ("joined_writes.c", "number_waiting -= joined_of[fd]->waits;\n", ""),
        ("late_writes.c", "real_close(each->fd);\n", ""),
        ("late_writes.c", "\t\tgive_up(each);\n", "\t\treturn;\n"),
        ("late_writes.c", "\treturn real_close(fd);\n", "\treturn 0;\n"),
    ],
)
def test_a_broken_library_is_found_out(tmp_path: Path, sources: Path, file: str, right: str, wrong: str) -> None:
    text = (sources / file).read_text()
    assert text.count(right) == 1
    (sources / file).write_text(text.replace(right, wrong))
    assert replay(tmp_path, sources).returncode != 0
