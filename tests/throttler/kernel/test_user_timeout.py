# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that a subflow to an unreachable client is closed earlier than by TCP itself, which takes 15 minutes.

Unacknowledged data close it after the timeout that the throttler sets; otherwise, keepalive closes it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.kernel
MAX_SECONDS = 120.0
"""Longest timeout of these tests, in seconds. The socket must be closed within half of it."""
PROGRAM = """
import socket, subprocess, sys, time
from mptcp_throttler.kernel.bpf import SocketPacing
from mptcp_throttler.shaping.model import Ownership

timeout, idle, longest = map(float, sys.argv[1:4])
pacing = SocketPacing(Ownership(), timeout)
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
listener.bind(("127.0.0.1", 3128))
listener.listen()
client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
client.connect(("127.0.0.1", 3128))
accepted, _ = listener.accept()
for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 2)):
    accepted.setsockopt(socket.IPPROTO_TCP, option, value)


def stays_open(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not subprocess.run(ESTABLISHED, capture_output=True).stdout:
            return False
        time.sleep(0.1)
    return True


ESTABLISHED = ["ss", "-tnH", "state", "established", "sport", "=", ":3128"]
DROP = "table inet q {\\nchain input {\\ntype filter hook input priority 0\\ndrop\\n}\\n}"
accepted.sendall(b"x" * 1000)
print("open while idle:", stays_open(2 * idle))
accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, sys.argv[4] == "keepalive")
subprocess.run(["nft", DROP], check=True)
if sys.argv[4] == "data":
    accepted.sendall(b"x" * 1000)
print("open at first:", stays_open(idle / 8))
print("open later:", stays_open(longest))
"""


@pytest.mark.parametrize(("cause", "timeout"), [("data", 4.0), ("keepalive", MAX_SECONDS)])
def test_subflow_to_an_unreachable_client_is_closed_in_time(
    require: Callable[..., None], cause: str, timeout: float
) -> None:
    """Defect: the timeout replaced the limit on unanswered probes, and an idle tunnel stayed for 5 minutes, not 2."""
    require("mptcp", "bpf-pacing", "nftables")
    script = 'ip link set lo up && exec "$@"'
    idle = min(timeout, 4.0)
    program = [sys.executable, "-c", PROGRAM, str(timeout), str(idle), str(MAX_SECONDS / 2), cause]
    result = subprocess.run(
        ["unshare", "--net", "sh", "-c", script, "sh", *program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.stdout.splitlines() == ["open while idle: True", "open at first: True", "open later: False"], (
        result.stderr
    )
