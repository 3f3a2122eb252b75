# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests one after another, each on its own connection: ``agent.timed_requests COUNT PROXY PORT ORIGIN``.

Each request is a GET of ``/file`` by MPTCP. The program prints a JSON object: ``seconds``, a list of the times from
connect(2) to the end of the answer, of requests with status 200; ``failed``, the number of other requests;
``multipath``, the number of connections that did not fall back.
"""

from __future__ import annotations

import json
import socket
import sys
import time

from .fetch import MPTCP

_SOL_MPTCP, _MPTCP_INFO = 284, 1
"""Socket level and option, from linux/mptcp.h."""
_TIMEOUT = 60.0
"""Maximum seconds for each step of a request."""


def _is_multipath(connection: socket.socket) -> bool:
    """Return whether *connection* has not fallen back. After a fallback, MPTCP_INFO fails (EOPNOTSUPP)."""
    try:
        connection.getsockopt(_SOL_MPTCP, _MPTCP_INFO, 1)
    except OSError:
        return False
    return True


def main() -> None:
    """Send the requests and print their times."""
    count, proxy, port, origin = sys.argv[1:]
    request = f"GET http://{origin}/file HTTP/1.1\r\nHost: {origin}\r\nConnection: close\r\n\r\n".encode()
    seconds = []
    failed = multipath = 0
    for _ in range(int(count)):
        begin = time.monotonic()
        answer = b""
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP) as connection:
                connection.settimeout(_TIMEOUT)
                connection.connect((proxy, int(port)))
                connection.sendall(request)
                block = connection.recv(65536)
                multipath += _is_multipath(connection)
                while block:
                    answer += block
                    block = connection.recv(65536)
        except OSError:
            answer = b""
        if answer.startswith(b"HTTP/1.1 200 "):
            seconds.append(time.monotonic() - begin)
        else:
            failed += 1
    print(json.dumps({"seconds": seconds, "failed": failed, "multipath": multipath}))


if __name__ == "__main__":
    main()
