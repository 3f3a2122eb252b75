# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the laboratory's own probe for BPF on TCP sockets predicts whether the throttler's BPF programs work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.kernel
PROBE = ("-m", "mptcp_lab.testbed.bpf_probe")
DAEMON = """
from mptcp_throttler.kernel.bpf import SocketPacing
from mptcp_throttler.shaping.model import Ownership
SocketPacing(Ownership()).close()
"""


def works(rights: str, *argv: str) -> bool:
    """Run Python with *argv* in a new network namespace, with only these *rights*. Return whether it succeeds."""
    command = ["unshare", "--net", "setpriv", f"--bounding-set={rights}", sys.executable, "-I", *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    # Neither program may fail for lack of a Python module.
    assert "ImportError" not in done.stderr
    assert "No module" not in done.stderr
    return done.returncode == 0


@pytest.mark.parametrize("rights", ["+all", "-bpf,-sys_admin", "-net_admin,-sys_admin", "-all"])
def test_probe_predicts_whether_throttler_can_load_its_programs(rights: str, require: Callable[..., None]) -> None:
    require("namespaces")
    assert works(rights, *PROBE) is works(rights, "-c", DAEMON)
