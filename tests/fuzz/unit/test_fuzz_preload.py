"""What the preload library reads, under the address and undefined-behaviour sanitizers: its corpus, and damaged.

All mutants are in one program, for to build it takes longer than what it does: $MUTANT says which one it is. 0 is none.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from examples import examples

from mptcp_proxy import shim

HERE = Path(__file__).parents[1]
DAMAGED = 15_000
"""Inputs; most mutants fail at one of the first."""
FLAGS = ("-std=gnu11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
CHOSEN = """
#include <stdlib.h>

int mutant;

__attribute__((constructor(101))) static void choose(void)
{
	mutant = atoi(getenv("MUTANT"));
}
"""
MUTANTS = [
    ("scope.c", "calloc(1, strlen(value) + 1)", "calloc(1, strlen(value))"),
    ("scope.c", "!is_own_entry(environment[i])", "environment[i] != NULL"),
    ("scope.c", "*copy++ = own_entries[i];", "if (i < OWN_ENTRIES - 1) *copy++ = own_entries[i];"),
    ("scope.c", "strlen(path) == length", "true"),
    ("mptcp_listen.c", "list = end;", "list = end + 1;"),
    ("swap.c", "length >= sizeof(struct sockaddr_in6)", "length > 4"),
    ("swap.c", "length < sizeof address->sa_family", "length < 1"),
    ("connect.c", "word == wanted", "word >= wanted"),
    ("connect.c", "list[word] != '\\0'", "1"),
    ("connect.c", "&six->s6_addr[12]", "&six->s6_addr[8]"),
    ("connect.c", "INET6_ADDRSTRLEN + 8", "16"),
    ("connect.c", "port == 0", "port < 0"),
    ("zero_read.c", "size > 0", "size > 9"),
    ("zero_read.c", "*last == turn", "true"),
    ("zero_read.c", "turn++;", ";"),
    ("zero_read.c", "*last = turn;", ";"),
    ("fair_turns.c", "*length < room ? *length : room", "*length"),
    (
        "fair_turns.c",
        "return fd >= 0 && fd < DESCRIPTORS ? atomic_load_explicit(&place_of[fd], memory_order_relaxed) : 0;",
        "return fd >= 0 ? atomic_load_explicit(&place_of[fd], memory_order_relaxed) : 0;",
    ),
    ("fair_turns.c", "port_of(address, length) == 0", "address->sa_family == AF_UNIX"),
    ("fair_turns.c", "place_of[fd] = 0;", ";"),
    ("fair_turns.c", "--client->number > 0", "client->number > 0"),
    ("fair_turns.c", "fd < -1", "fd < 0"),
    ("fair_turns.c", "share * found <= room ? share : room / found", "share"),
    ("fair_turns.c", "TURN / found > 1 ? TURN / found : 1", "TURN"),
    ("fair_turns.c", "n < accepts && count < most", "n < accepts"),
    ("fair_turns.c", "n < accepts && count < most", "n <= accepts && count < most"),
    ("fair_turns.c", "!listens[fd]", "false"),
    ("fair_turns.c", "(events[i].events & EPOLLIN) == 0", "false"),
    ("fair_turns.c", "accepts < ACCEPTS", "true"),
    ("joined_writes.c", "memcpy(joined->bytes + joined->end, bytes, size);", "memcpy(joined->bytes, bytes, size);"),
    ("joined_writes.c", "joined->first += sent", "joined->first = sent"),
    ("joined_writes.c", "keep && keep_rest(joined_of[fd])", "false"),
    ("joined_writes.c", "share_place(joined->fd, copy);", ";"),
    ("joined_writes.c", "ended[number_ended++] = joined->fd;", ";"),
    ("joined_writes.c", "events[i].events &= ~EPOLLOUT;", ";"),
    ("joined_writes.c", "all_joined[joined->place]->place = joined->place;", ";"),
    (
        "joined_writes.c",
        "joined_of[joined->fd] = NULL;\n\tall_joined[joined->place] = all_joined[--number_joined];",
        "all_joined[joined->place] = all_joined[--number_joined];",
    ),
    ("may_write.c", "\t\tevents |= EPOLLOUT;", ";"),
    ("joined_writes.c", "number_waiting -= joined_of[fd]->waits;", ";"),
    ("late_writes.c", "real_close(each->fd);", ";"),
    ("late_writes.c", "give_up(each);", ";"),
    ("late_writes.c", "return real_close(fd);", "return 0;"),
]
"""File, a statement or an expression in it, and what is there in the mutant."""
LATE = ("\t\tevents |= EPOLLOUT;", "give_up(each);", "all_joined[joined->place]->place = joined->place;")
"""In these something is waited for that does not come."""


def with_mutants(texts: dict[str, str]) -> dict[str, str]:
    """Return the library's sources, by name, in which each mutant can be chosen while the program runs."""
    for number, (name, right, wrong) in enumerate(MUTANTS, 1):
        assert texts[name].count(right) == 1, right
        if right.endswith(";"):
            either = f"{{ if (mutant == {number}) {{ {wrong} }} else {{ {right} }} }}"
        else:
            either = f"(mutant == {number} ? ({wrong}) : ({right}))"
        texts[name] = texts[name].replace(right, either)
    return {name: f"extern int mutant;\n{text}" for name, text in texts.items()}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]) -> Path:
    """The target, and what drives it, with the library and its mutants."""
    require("gcc")
    directory = tmp_path_factory.mktemp("preload")
    library = {path.name: path.read_text() for path in Path(shim.__file__).parent.glob("*.[ch]")}
    for name, text in {**with_mutants(library), "chosen.c": CHOSEN}.items():
        (directory / name).write_text(text)
    files = [HERE / "c" / "preload.c", HERE / "c" / "replay.c", directory / "chosen.c"]
    target = directory / "replay"
    subprocess.run(["gcc", *FLAGS, f"-I{directory}", *map(str, files), "-ldl", "-o", str(target)], check=True)
    return target


def replay(program: Path, mutant: int, damaged: int = DAMAGED) -> subprocess.CompletedProcess[str]:
    """Have the *mutant* take the corpus, and so many inputs that come of damaging it."""
    corpus = sorted(map(str, (HERE / "corpora" / "preload").iterdir()))
    # A preload library of somebody else would come before the sanitizer.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(
        [str(program), str(damaged), *corpus],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**environment, "MUTANT": str(mutant)},
    )


def test_what_the_library_reads_breaks_nothing(program: Path) -> None:
    ended = replay(program, 0, examples(DAMAGED))
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(number, id=f"{name}: {right}", marks=[pytest.mark.nightly] * (right in LATE))
        for number, (name, right, _) in enumerate(MUTANTS, 1)
    ],
)
def test_a_broken_library_is_found_out(program: Path, mutant: int) -> None:
    assert replay(program, mutant).returncode != 0
