# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests kernel features. ``reading.probe`` runs this program in a temporary network namespace.

It prints a JSON object: for each feature null if it works, otherwise the reason why it does not. The throttler's
``kernel.feature_probe`` tests the features that the throttler needs.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable

from mptcp_common.throttler_trial import attempt

from ..places import Role

_SOCKET = {Role.PROXY: "listener", Role.RELAY: "connection"}
_REPORT_PROTOCOL = {
    Role.PROXY: """
import socket, sys
listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
listener.bind(("::", 3128))
print(listener.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL))
""",
    # The connection need not succeed: no process listens there.
    Role.RELAY: """
import socket, sys
connection = socket.socket()
connection.connect_ex(("127.0.0.1", 3128))
print(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL))
""",
}
_LIBRARY_VARIABLE = {Role.PROXY: ("MPTCP_LISTEN_PORTS", "3128"), Role.RELAY: ("MPTCP_PARENTS", "127.0.0.1:3128")}


def _create_mptcp_socket() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP).close()


def _use_library(library: str, role: Role) -> None:
    with tempfile.TemporaryDirectory(prefix="mptcp-proxy-probe-") as directory:
        # Copy the library, as "run" does, because LD_PRELOAD cannot contain every path.
        copy = shutil.copy(library, directory)
        answer = subprocess.run(
            [sys.executable, "-I", "-c", _REPORT_PROTOCOL[role]],
            env={**os.environ, "LD_PRELOAD": copy, **dict([_LIBRARY_VARIABLE[role]])},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    if answer.stdout.strip() != str(socket.IPPROTO_MPTCP):
        raise RuntimeError(answer.stderr.strip() or f"the {_SOCKET[role]} stayed plain TCP")


def main() -> None:
    trials: dict[str, Callable[[], None]] = {"mptcp": _create_mptcp_socket}
    role = Role(sys.argv[1])
    if len(sys.argv) > 2:
        trials["shim"] = lambda: _use_library(sys.argv[2], role)
    print(json.dumps(attempt(trials)))


if __name__ == "__main__":
    main()
