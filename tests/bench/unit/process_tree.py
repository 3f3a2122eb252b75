# SPDX-License-Identifier: GPL-2.0-or-later
"""Starts a tree of processes, for tests of readings over all processes of a program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mptcp_lab.agent.processes import descendants


@contextmanager
def running(program: str, ready: int) -> Iterator[int]:
    """Run the Python *program*. Yield its PID when it has printed *ready* lines; then end the whole tree."""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout is not None
            for _ in range(ready):
                assert first.stdout.readline() == b"ready\n"
            yield first.pid
        finally:
            for each in (*descendants(first.pid), first.pid):
                os.kill(each, 9)
