# SPDX-License-Identifier: GPL-2.0-or-later
"""``mptcp-throttler top`` in a terminal of 80 columns: when it shows its tables."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from .console_load_judging import NO_TABLE, Top
from .scale_watch import operators_environment

_HEAD: Final = re.compile(rb"(\d\d:\d\d:\d\d)\s+([\d,]+) connections?\b")
"""A table's first line: the time of the daemon's answer and the number of connections."""
_LINES, _COLUMNS = 24, 80


def heads(text: bytes, tunnels: int) -> list[str]:
    """Return the times of the tables in a terminal's output *text* that show *tunnels* connections, each time once."""
    found = (head[1].decode() for head in _HEAD.finditer(text) if int(head[2].replace(b",", b"")) == tunnels)
    return list(dict.fromkeys(found))


def watched(argv: Sequence[str], tunnels: int, refreshes: int, within: float) -> Top:
    """Run *argv* until it has shown *refreshes* tables after the first, or for *within* seconds."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
    begin = time.monotonic()
    environment = operators_environment() | {"TERM": "xterm"}
    process = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environment
    )
    os.close(theirs)
    text, times = b"", list[float]()
    try:
        while len(times) <= refreshes and (left := begin + within - time.monotonic()) > 0:
            if not select.select([ours], [], [], left)[0]:
                break
            try:
                text += os.read(ours, 1 << 16)
            except OSError:  # the program has ended
                break
            times += [time.monotonic()] * (len(heads(text, tunnels)) - len(times))
        if process.poll() is None:
            os.write(ours, b"q")
            _drain(ours, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        os.close(ours)
    if process.returncode != 0 or not times:
        return NO_TABLE
    return Top(times[0] - begin, tuple(b - a for a, b in pairwise(times)))


def _drain(descriptor: int, process: subprocess.Popen[bytes]) -> None:
    """Read the process's output until it has ended, or for ten seconds: it cannot end while its output is unread."""
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([descriptor], [], [], 0.1)[0]:
            try:
                os.read(descriptor, 1 << 16)
            except OSError:
                return
