# SPDX-License-Identifier: GPL-2.0-or-later
"""Thousands of idle connections to a proxy. As a program: ``KIND COUNT PROXY PORT ORIGIN ADDRESS...``.

The *KIND* ``slow-headers`` begins a request and never finishes it. ``keep-alives`` keeps the connection open after the
answer to a GET of ``/file``, ``tunnels`` after the answer to a CONNECT. Every second connection uses MPTCP. The
connections use the *ADDRESS*es in turn.

When all connections are open, the program prints a JSON object with the number of connections by status, and
``refused``. After each SIGUSR1 it prints another object: ``open``, the number of connections that are still open.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mptcp_lab.testbed import LiveNode, Program
from mptcp_lab.testbed.services import PROXY_PORT, Origin, Proxy, wait_until

OPEN_TIMEOUT = 600.0
"""Maximum seconds for opening all connections."""
ANSWER_TIMEOUT = 120.0
"""Maximum seconds for one answer."""
REQUESTS = {
    "slow-headers": "GET http://{}/file HTTP/1.1\r\nX: ",
    "keep-alives": "GET http://{0}/file HTTP/1.1\r\nHost: {0}\r\n\r\n",
    "tunnels": "CONNECT {0}:443 HTTP/1.1\r\nHost: {0}:443\r\n\r\n",
}


@dataclass(frozen=True, slots=True)
class IdleConnections:
    """Connections that are kept open."""

    process: Program
    statuses: dict[str, int]
    """Number of connections by the status of their answer; ``refused`` is the number of refused connections."""

    def count_open(self) -> int:
        """Return how many connections the proxy has not closed."""
        before = len(_lines(self.process))
        self.process.signal(signal.SIGUSR1)
        wait_until(lambda: len(_lines(self.process)) > before, "the connections are counted", process=self.process)
        return _lines(self.process)[-1]["open"]

    def final_count(self, pause: float) -> int:
        """Return the number of open connections when it no longer changes within *pause* seconds."""
        numbers = [self.count_open()]

        def is_unchanged() -> bool:
            time.sleep(pause)
            numbers.append(self.count_open())
            return numbers[-1] == numbers[-2]

        wait_until(is_unchanged, "the proxy closes no more connections", timeout=OPEN_TIMEOUT)
        return numbers[-1]


@contextmanager
def idle_connections(
    host: LiveNode, proxy: Proxy, origin: Origin, kind: str, count: int, addresses: Sequence[str]
) -> Iterator[IdleConnections]:
    """Keep *count* connections of *kind* from *addresses* open during the scope."""
    servers = proxy.host.service_address(), str(PROXY_PORT), origin.host.service_address()
    argv = [sys.executable, "-I", __file__, kind, str(count), *servers, *addresses]
    with host.running(argv, name=kind) as process:
        wait_until(lambda: bool(_lines(process)), f"{count} {kind} are open", process=process, timeout=OPEN_TIMEOUT)
        yield IdleConnections(process, _lines(process)[0])


def _lines(process: Program) -> list[dict[str, int]]:
    """Return the complete lines of the program's output, parsed."""
    return [json.loads(line) for line in process.output().splitlines(keepends=True) if line.endswith("}\n")]


def add_addresses(host: LiveNode, device: str, numbers: Iterable[int]) -> list[str]:
    """Add IPv4 addresses that end with the bytes *numbers* to *device*, and return them."""
    network = host.address(device).rpartition(".")[0]
    addresses = [f"{network}.{number}" for number in numbers]
    for each in addresses:
        host.run(["ip", "address", "add", f"{each}/24", "dev", device])
    return addresses


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
    request = REQUESTS[kind].format(origin).encode()
    connections = []
    statuses = Counter[str]()
    for number in range(int(count)):
        protocol = socket.IPPROTO_MPTCP if number % 2 else 0
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
        connection.settimeout(ANSWER_TIMEOUT)
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
        print(json.dumps({"open": sum(map(_is_open, connections))}), flush=True)


if __name__ == "__main__":
    main()
