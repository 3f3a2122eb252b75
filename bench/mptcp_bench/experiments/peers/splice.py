# SPDX-License-Identifier: GPL-2.0-or-later
"""A program that does the least that a relay can do, ``native/splice_relay.c``. It is a limit, not a proxy."""

from __future__ import annotations

from pathlib import Path

from mptcp_lab.testbed import LiveNode, Program
from mptcp_lab.testbed.commands import run

from .model import PORT, Peer, PeerSetup, answers

NATIVE = Path(__file__).parent.parent / "native"


def built(name: str, host: LiveNode) -> Path:
    """Return the program of ``native/NAME.c``, compiled once into the directory of *host*."""
    program = host.directory / name
    if not program.exists():
        flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra"]
        run(["gcc", *flags, "-o", str(program), str(NATIVE / f"{name}.c")], attempt=f"build {name}")
    return program


def _start(setup: PeerSetup) -> Program:
    argv = [str(built("splice_relay", setup.host)), str(PORT), setup.origin, "80"]
    return answers(setup, setup.host.popen(argv, name="splice"), "the splice relay")


SPLICE = Peer("splice", "gcc", ("gcc",), _start, multipath="own")
