# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for clients that close their half of a connection (FIN) and wait for the answer: Squid then closes the other
half, too.

This is known and accepted (docs/squid-versions.md): ``half_closed_clients on`` would prevent it, but lets clients crash
Squid. If a later Squid keeps the other half open, this test fails, and the page must be corrected.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proxying import wait_for_workers, worker_pids, write_configuration

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import PROXY_PORT, Proxy, python_command, start_proxy, wait_until

pytestmark = pytest.mark.kernel
TCP, MPTCP = 6, 262
PORT = 443
# An origin that answers /whole immediately, and /half when Squid has closed the connection or after a minute.
ORIGIN = """
import socket, sys, threading
listener = socket.create_server(("", int(sys.argv[1])))
def serve(connection):
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
        if received.endswith(b"\\r\\n\\r\\n"):
            break
    try:
        if b"/half " in received:
            connection.settimeout(60)
            while connection.recv(65536):
                pass
    except OSError:
        pass
    try:
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nanswer")
    except OSError:
        pass
    connection.close()
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=(connection,)).start()
"""
# A client that prints whether the answer arrived.
CLIENT = """
import socket, sys
proxy, port, target, protocol, tunnel, half = sys.argv[1:]
connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, int(protocol))
connection.settimeout(100)
connection.connect((proxy, int(port)))
if tunnel == "tunnel":
    connection.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n".encode())
    assert b" 200 " in connection.recv(1000)
    connection.sendall(f"GET /{half} HTTP/1.1\\r\\n\\r\\n".encode())
else:
    head = f"GET http://{target}/{half} HTTP/1.1\\r\\nHost: {target}\\r\\nConnection: close\\r\\n\\r\\n"
    connection.sendall(head.encode())
if half == "half":
    connection.shutdown(socket.SHUT_WR)
received = b""
try:
    while chunk := connection.recv(65536):
        received += chunk
        if received.endswith(b"answer"):
            break
except ConnectionResetError:
    pass
print(received.endswith(b"answer"))
"""


@pytest.fixture(scope="module")
def proxy(module_testbed: Testbed, require: Callable[..., None]) -> Proxy:
    require("squid", "gcc")
    origin = module_testbed["origin"]
    process = origin.popen(python_command(ORIGIN, str(PORT)), name="origin")
    wait_until(lambda: f":{PORT} " in origin.run(["ss", "-Htln"]).stdout, "the origin listens", process=process)
    return start_proxy(module_testbed["proxy"], write_configuration(module_testbed["proxy"]))


@pytest.mark.parametrize("protocol", [MPTCP, TCP], ids=["MPTCP", "TCP"])
@pytest.mark.parametrize("method", ["tunnel", "request"])
def test_only_a_client_that_half_closes_loses_its_answer(
    module_testbed: Testbed, proxy: Proxy, method: str, protocol: int
) -> None:
    origin, node = module_testbed["origin"].service_address(), module_testbed["proxy"].service_address()
    before = wait_for_workers(proxy)

    def gets_answer(half: str) -> bool:
        command = python_command(CLIENT, node, str(PROXY_PORT), f"{origin}:{PORT}", str(protocol), method, half)
        return module_testbed["client"].run(command, timeout=120).stdout.strip() == "True"

    assert gets_answer("whole")
    assert not gets_answer("half")
    assert worker_pids(proxy.process) == before
