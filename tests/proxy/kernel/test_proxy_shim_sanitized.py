# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the preload libraries with the address and undefined-behaviour sanitizers, in a program similar to
Squid."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from preloading import sanitized_libraries

pytestmark = pytest.mark.kernel
TCP, MPTCP = 6, 262
PROGRAM = """
import json, os, subprocess, sys
from socket import *
names = ["MPTCP_LISTEN_PORTS", "MPTCP_CONGESTION", "MPTCP_PARENTS"]
visible_variables = [os.environ.get(name) for name in names]
def protocol(port, family=AF_INET):
    s = socket(family, SOCK_STREAM)
    s.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1); s.setsockopt(SOL_SOCKET, SO_RCVBUF, 100000)
    s.bind(("::1" if family == AF_INET6 else "127.0.0.1", port)); s.listen()
    return s.getsockopt(SOL_SOCKET, SO_PROTOCOL)
def connected(port, family=AF_INET, name=None):
    address = "::1" if family == AF_INET6 else "127.0.0.1"
    server = socket(family, SOCK_STREAM); server.bind((address, port)); server.listen()
    s = socket(family, SOCK_STREAM); s.setsockopt(SOL_SOCKET, SO_SNDBUF, 100000)
    if name: s.bind(name)
    s.connect((address, port))
    return s.getsockopt(SOL_SOCKET, SO_PROTOCOL)
found = [protocol(3128), protocol(3129, AF_INET6), protocol(3130)]
found += [connected(4000, name=("127.0.0.9", 0)), connected(4001, AF_INET6), connected(4002)]
a, b = socketpair(); b.send(b"x")
try: found.append(os.read(a.fileno(), 0).decode())
except BlockingIOError: found.append("again")
found.append(os.read(a.fileno(), 9).decode())
preload = os.environ.get("LD_PRELOAD", "")
if len(sys.argv) > 1:
    if os.fork() == 0:
        os.environ["PATH"] = "/nonexistent:/bin:" * 200
        os.environ["LD_PRELOAD"] = sys.argv[2]
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
    assert os.wait()[1] == 0
    os.environ["LD_PRELOAD"] = ""
    variable = subprocess.run(["sh", "-c", "echo $MPTCP_LISTEN_PORTS"], capture_output=True, text=True).stdout.strip()
    try: os.execvp("no-such-program", ["x"])
    except FileNotFoundError: found.append(variable)
print(json.dumps([visible_variables, "mptcp_listen" in preload or "squid_turns" in preload, *found]), flush=True)
"""


@pytest.mark.parametrize("source", ["list", "file"])
def test_sanitizers_report_no_error(tmp_path: Path, require: Callable[..., None], source: str) -> None:
    require("root", "namespaces", "mptcp", "gcc")
    ports, parents = "3128, 3129", "127.0.0.1:4000 [::1]:4001"
    if source == "file":
        (tmp_path / "parents").write_text(parents + "\n" * 5000)
        parents = str(tmp_path / "parents")
        (tmp_path / "ports").write_text("3128,3129\n" + " " * 5000)
        ports = str(tmp_path / "ports")
    preload = " ".join(sanitized_libraries())
    answer = subprocess.run(
        [
            *("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", "env"),
            # The interpreter frees little memory when it exits.
            "ASAN_OPTIONS=detect_leaks=0",
            f"LD_PRELOAD={preload}",
            f"MPTCP_LISTEN_PORTS={ports}",
            "MPTCP_CONGESTION=reno",
            f"MPTCP_PARENTS={parents}",
            *(sys.executable, "-c", PROGRAM, PROGRAM, preload),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    # A child that runs the same program has the library; another program has neither library nor variables.
    child, parent = map(json.loads, answer.stdout.splitlines())
    visible_variables, is_preloaded = [None] * 3, False
    listeners = connections = [MPTCP, MPTCP, TCP]
    reads = ["again", "x"]
    expected = [visible_variables, is_preloaded, *listeners, *connections, *reads]
    assert child == expected
    assert parent == [*expected, ""]
