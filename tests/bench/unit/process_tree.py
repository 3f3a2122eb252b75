# SPDX-License-Identifier: GPL-2.0-or-later
"""A tree of processes for tests that look at all of one program's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mptcp_lab.agent.processes import descendants


@contextmanager
def running(program: str, ready: int) -> Iterator[int]:
    """Have the Python *program* run; yield its process id once *ready* lines have come, and end all of the tree."""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout is not None
            for _ in range(ready):
                assert first.stdout.readline() == b"ready\n"
            yield first.pid
        finally:
            for each in (*descendants(first.pid), first.pid):
                os.kill(each, 9)
