# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for an origin that closes or resets a persistent connection just when the next request arrives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proxying import write_configuration

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import python_command, start_proxy, wait_until

pytestmark = pytest.mark.kernel
# An origin that answers the first request of a connection, and sends FIN or RST in reply to the second request.
ORIGIN = """
import socket, struct, sys, threading
listener = socket.create_server(("", int(sys.argv[1])))
def serve(connection):
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
    connection.recv(65536)
    if sys.argv[2] == "RST":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=(connection,)).start()
"""
# A client that sends a request, waits for the answer, sends a second request, and prints both statuses.
CLIENT = """
import socket, sys
def send(request):
    with socket.create_connection(("10.77.8.2", 3128), timeout=60) as proxy:
        proxy.sendall(request)
        answer = b""
        while chunk := proxy.recv(65536):
            answer += chunk
        return answer.split()[1].decode()
url = f"http://10.77.9.2:{sys.argv[2]}/"
head = f"{sys.argv[1]} {url} HTTP/1.1\\r\\nHost: 10.77.9.2\\r\\nConnection: close\\r\\n"
body = "" if sys.argv[1] == "GET" else "Content-Length: 2\\r\\n\\r\\nab"
first = send(f"GET {url} HTTP/1.1\\r\\nHost: 10.77.9.2\\r\\nConnection: close\\r\\n\\r\\n".encode())
print(first, send((head + (body or "\\r\\n")).encode()))
"""


@pytest.fixture(scope="module")
def testbed(module_testbed: Testbed, require: Callable[..., None]) -> Testbed:
    require("squid", "gcc")
    # With several workers, each has its own idle connections, and the second request might use another worker.
    start_proxy(module_testbed["proxy"], write_configuration(module_testbed["proxy"], "workers 1"))
    return module_testbed


@pytest.mark.parametrize(
    ("port", "method", "close", "statuses"),
    [
        (8101, "GET", "FIN", "200 200"),
        # Reading fails with an error, after which Squid does not repeat the request (docs/squid-versions.md).
        (8102, "GET", "RST", "200 502"),
        (8103, "PUT", "RST", "200 200"),
        (8104, "POST", "RST", "200 200"),
    ],
)
def test_only_a_reset_of_a_request_without_body_is_an_error_for_the_client(
    testbed: Testbed, port: int, method: str, close: str, statuses: str
) -> None:
    """Squid sends requests with a body on new connections."""
    origin = testbed["origin"]
    process = origin.popen(python_command(ORIGIN, str(port), close), name=f"origin-{port}")
    wait_until(lambda: str(port) in origin.run(["ss", "-Htln"]).stdout, "the origin listens", process=process)
    client = testbed["client"]
    assert client.run(python_command(CLIENT, method, str(port)), timeout=200).stdout.strip() == statuses
