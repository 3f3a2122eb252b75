# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of the preload libraries with the address and undefined-behaviour sanitizers, on a corpus and on damaged
inputs.

One program contains all mutants of a library, because compiling takes longer than running. $MUTANT selects a
mutant; 0 selects the unchanged library.
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
"""Number of damaged inputs. The tests of most mutants need only a small part of them."""
FLAGS = ("-std=gnu11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
MUTANT_CHOICE = """
#include <stdlib.h>

int mutant;

__attribute__((constructor(101))) static void choose(void)
{
	mutant = atoi(getenv("MUTANT"));
}
"""
MUTANTS = [
    ("both/scope.c", "calloc(1, strlen(value) + 1)", "calloc(1, strlen(value))"),
    ("both/scope.c", "!is_own_entry(environment[i])", "environment[i] != NULL"),
    ("both/scope.c", "*copy++ = own_entries[i];", "if (i < OWN_ENTRIES - 1) *copy++ = own_entries[i];"),
    ("both/scope.c", "strlen(path) == length", "true"),
    ("listen/listeners.c", "list = end;", "list = end + 1;"),
    ("both/both.h", "length >= sizeof(struct sockaddr_in6)", "length > 4"),
    ("both/both.h", "length < sizeof address->sa_family", "length < 1"),
    ("listen/parents.c", "word == length", "word >= length"),
    ("listen/parents.c", "list[word] != '\\0'", "1"),
    ("listen/parents.c", "&ipv6->s6_addr[12]", "&ipv6->s6_addr[8]"),
    ("listen/parents.c", "INET6_ADDRSTRLEN + 8", "16"),
    ("listen/parents.c", "port == 0", "port < 0"),
    ("turns/zero_read.c", "size > 0", "size > 9"),
    ("turns/zero_read.c", "*last == turn", "true"),
    ("turns/zero_read.c", "turn++;", ";"),
    ("turns/zero_read.c", "*last = turn;", ";"),
    ("turns/hooks.c", "*length < room ? *length : room", "*length"),
    (
        "turns/turns.h",
        "return fd >= 0 && fd < DESCRIPTORS ? atomic_load_explicit(&descriptors[fd].place, memory_order_relaxed) : 0;",
        "return fd >= 0 ? atomic_load_explicit(&descriptors[fd].place, memory_order_relaxed) : 0;",
    ),
    ("turns/fair_turns.c", "port_of(address, length) == 0", "address->sa_family == AF_UNIX"),
    ("turns/fair_turns.c", "descriptors[fd].place = 0;", ";"),
    ("turns/fair_turns.c", "--client->descriptor_count > 0", "client->descriptor_count > 0"),
    ("turns/fair_turns.c", "fd < -1", "fd < 0"),
    ("turns/fair_turns.c", "share * ready_count <= room ? share : room / ready_count", "share"),
    ("turns/fair_turns.c", "EVENTS_PER_TURN / ready_count > 1 ? EVENTS_PER_TURN / ready_count : 1", "EVENTS_PER_TURN"),
    ("turns/fair_turns.c", "n < accepts && count < max", "n < accepts"),
    ("turns/fair_turns.c", "n < accepts && count < max", "n <= accepts && count < max"),
    ("turns/fair_turns.c", "!descriptors[fd].is_listener", "false"),
    ("turns/fair_turns.c", "(events[i].events & EPOLLIN) == 0", "false"),
    ("turns/fair_turns.c", "accepts < MAX_ACCEPTS", "true"),
    (
        "turns/joined_writes.c",
        "memcpy(joined->bytes + joined->end, bytes, size);",
        "memcpy(joined->bytes, bytes, size);",
    ),
    ("turns/joined_writes.c", "joined->first += sent", "joined->first = sent"),
    ("turns/joined_writes.c", "keep && keep_rest(descriptors[fd].joined)", "false"),
    ("turns/joined_writes.c", "share_place(joined->fd, copy);", ";"),
    ("turns/joined_writes.c", "ended_copies[ended_count++] = joined->fd;", ";"),
    ("turns/joined_writes.c", "events[i].events &= ~EPOLLOUT;", ";"),
    ("turns/joined_writes.c", "all_joined[joined->index]->index = joined->index;", ";"),
    (
        "turns/joined_writes.c",
        "descriptors[joined->fd].joined = NULL;\n\tall_joined[joined->index] = all_joined[--joined_count];",
        "all_joined[joined->index] = all_joined[--joined_count];",
    ),
    ("turns/may_write.c", "\t\tevents |= EPOLLOUT;", ";"),
    ("turns/joined_writes.c", "waiting_count -= descriptors[fd].joined->waits_for_kernel;", ";"),
    ("listen/late_writes.c", "next_close(each->fd);", ";"),
    ("listen/late_writes.c", "close_held(each);", ";"),
    ("listen/hooks.c", "return next_close(fd);", "return 0;"),
]
"""For each mutant: the file, a statement or an expression in it, and its replacement."""
SLOW_ORIGINALS = ("\t\tevents |= EPOLLOUT;", "close_held(each);", "all_joined[joined->index]->index = joined->index;")
"""Original texts of mutants that are slow, because they wait for an event that never occurs."""


def insert_mutants(texts: dict[str, str]) -> dict[str, str]:
    """Return the sources of the libraries, by name. In them, a variable selects the mutant at run time."""
    for number, (name, original, replacement) in enumerate(MUTANTS, 1):
        assert texts[name].count(original) == 1, original
        if original.endswith(";"):
            selected = f"{{ if (mutant == {number}) {{ {replacement} }} else {{ {original} }} }}"
        else:
            selected = f"(mutant == {number} ? ({replacement}) : ({original}))"
        texts[name] = texts[name].replace(original, selected)
    return {name: f"extern int mutant;\n{text}" for name, text in texts.items()}


Programs = dict[str, Path]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]) -> Programs:
    """For each library, build a program from the fuzz target, the replay driver, and the library with its mutants."""
    require("gcc")
    directory, sources = tmp_path_factory.mktemp("preload"), Path(shim.__file__).parent
    texts = {str(path.relative_to(sources)): path.read_text() for path in sources.glob("*/*.[ch]")}
    for name, text in {**insert_mutants(texts), "chosen.c": MUTANT_CHOICE}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    targets = {name: directory / f"replay-{name}" for name in ("listen", "turns")}
    for name, target in targets.items():
        files = [HERE / "c" / f"{name}.c", HERE / "c" / "replay.c", directory / "chosen.c"]
        subprocess.run(["gcc", *FLAGS, f"-I{directory}", *map(str, files), "-ldl", "-o", str(target)], check=True)
    return targets


def replay(programs: Programs, name: str, mutant: int, damaged: int = DAMAGED) -> subprocess.CompletedProcess[str]:
    """Run the *mutant* of library *name* on its corpus, and on as many *damaged* inputs as stated."""
    corpus = sorted(map(str, (HERE / "corpora" / name).iterdir()))
    # The sanitizer must be the first preload library.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(
        [str(programs[name]), str(damaged), *corpus],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**environment, "MUTANT": str(mutant)},
    )


@pytest.mark.parametrize("name", ["listen", "turns"])
def test_library_handles_corpus_and_damaged_inputs(programs: Programs, name: str) -> None:
    completed = replay(programs, name, 0, examples(DAMAGED))
    assert completed.returncode == 0, completed.stderr[-2000:]


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(number, id=f"{name}: {original}", marks=[pytest.mark.nightly] * (original in SLOW_ORIGINALS))
        for number, (name, original, _) in enumerate(MUTANTS, 1)
    ],
)
def test_fuzzing_detects_a_faulty_library(programs: Programs, mutant: int) -> None:
    directory = MUTANTS[mutant - 1][0].partition("/")[0]
    # The target of the listen library also tests the code that both libraries share.
    name = "listen" if directory == "both" else directory
    assert replay(programs, name, mutant).returncode != 0
