"""Subflows to clients that vanished end before TCP gives up, which would be after a quarter of an hour."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.kernel
TIMEOUT, LONGEST = 4.0, 60.0
"""Seconds of the timeout, and until the socket must be gone, which a retransmission finds out."""
CODE = """
import socket, subprocess, sys, time
from mptcp_throttler.kernel.sockets.pacing import BpfSocketPacing
from mptcp_throttler.shaping.model import Ownership

timeout, longest = map(float, sys.argv[1:])
pacing = BpfSocketPacing(Ownership(), timeout)
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
listener.bind(("127.0.0.1", 3128))
listener.listen()
client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
client.connect(("127.0.0.1", 3128))
accepted, _ = listener.accept()


def lasts(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not subprocess.run(ESTABLISHED, capture_output=True).stdout:
            return False
        time.sleep(0.1)
    return True


ESTABLISHED = ["ss", "-tnH", "state", "established", "sport", "=", ":3128"]
accepted.sendall(b"x" * 1000)
print("idle", lasts(2 * timeout))
subprocess.run(["nft", "table inet q {\\nchain input {\\ntype filter hook input priority 0\\ndrop\\n}\\n}"], check=True)
accepted.sendall(b"x" * 1000)
print("soon", lasts(timeout / 8))
print("later", lasts(longest))
"""


def test_a_subflow_whose_data_nobody_acknowledges_ends_and_an_idle_one_does_not(require: Callable[..., None]) -> None:
    require("mptcp", "bpf-pacing", "nftables")
    script = 'ip link set lo up && exec "$@"'
    program = [sys.executable, "-c", CODE, str(TIMEOUT), str(LONGEST)]
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script, "sh", *program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines() == ["idle True", "soon True", "later False"], done.stderr
