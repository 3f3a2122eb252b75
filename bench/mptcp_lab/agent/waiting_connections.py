# SPDX-License-Identifier: GPL-2.0-or-later
"""Idle connections: ``agent.waiting_connections KIND COUNT PROXY PORT ORIGIN ADDRESS...``.

The *KIND* ``slow-headers`` begins a request and never finishes it. ``keep-alives`` keeps the connection open after the
answer to a GET of ``/file``, ``tunnels`` after the answer to a CONNECT. Every second connection uses MPTCP. The
connections use the *ADDRESS*es in turn.

When all connections are open, the program prints a JSON object with the number of connections by status, and
``refused``. After each SIGUSR1 it prints another object: ``standing``, the number of connections that are still open.
"""

from __future__ import annotations

import collections
import json
import resource
import signal
import socket
import sys

from .fetch import MPTCP

_TIMEOUT = 120.0
"""Maximum seconds for one answer."""
_REQUESTS = {
    "slow-headers": "GET http://{}/file HTTP/1.1\r\nX: ",
    "keep-alives": "GET http://{0}/file HTTP/1.1\r\nHost: {0}\r\n\r\n",
    "tunnels": "CONNECT {0}:443 HTTP/1.1\r\nHost: {0}:443\r\n\r\n",
}


def _is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(100))
    except BlockingIOError:
        return True
    except OSError:
        return False


def main() -> None:
    """Open the connections, and answer each SIGUSR1 until this process is killed."""
    kind, count, proxy, port, origin, *addresses = sys.argv[1:]
    # Block the signal, so that a signal that comes before all connections are open is answered later.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    request = _REQUESTS[kind].format(origin).encode()
    connections = []
    statuses = collections.Counter()  # type: collections.Counter[str]
    for number in range(int(count)):
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP if number % 2 else 0)
        connection.settimeout(_TIMEOUT)
        try:
            connection.bind((addresses[number % len(addresses)], 0))
            connection.connect((proxy, int(port)))
            connection.sendall(request)
            if kind != "slow-headers":
                # "HTTP/1.1 200 OK"
                statuses[connection.recv(10000)[9:12].decode()] += 1
        except OSError:
            statuses["refused"] += 1
            connection.close()
        else:
            connection.setblocking(False)
            connections.append(connection)
    print(json.dumps(statuses), flush=True)
    while True:
        signal.sigwait({signal.SIGUSR1})
        print(json.dumps({"standing": sum(map(_is_open, connections))}), flush=True)


if __name__ == "__main__":
    main()
