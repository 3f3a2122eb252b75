# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that a client that still writes after the proxy has closed the connection gets an error within seconds."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from proxying import write_configuration

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import PROXY_PORT, Proxy, python_command, start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel
TCP, MPTCP = 6, 262
MAX_SECONDS = 20.0
"""Maximum seconds until the error. The error takes a round trip; without the library, the kernel would need 60 s."""
# A client that sends a request, reads the answer to its end, and slowly sends more data until it gets an error.
CLIENT = """
import json, socket, sys, time
proxy, port, origin, protocol = sys.argv[1:]
connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, int(protocol))
connection.settimeout(60)
connection.connect((proxy, int(port)))
connection.sendall(f"GET http://{origin}/file HTTP/1.1\\r\\nHost: {origin}\\r\\nConnection: close\\r\\n\\r\\n".encode())
received = b""
while chunk := connection.recv(65536):
    received += chunk
start_time, failure = time.monotonic(), ""
while not failure and time.monotonic() < start_time + 90:
    try:
        connection.sendall(b"more")
    except OSError as error:
        failure = type(error).__name__
    time.sleep(0.1)
print(json.dumps([len(received), failure, time.monotonic() - start_time]))
"""


@pytest.fixture(scope="module")
def proxy(module_testbed: Testbed, require: Callable[..., None]) -> Proxy:
    require("squid", "apache2", "gcc")
    start_origin(module_testbed["origin"], {"file": 100_000})
    return start_proxy(module_testbed["proxy"], write_configuration(module_testbed["proxy"]))


@pytest.mark.parametrize("protocol", [TCP, MPTCP], ids=["TCP", "MPTCP"])
def test_late_write_fails_soon(module_testbed: Testbed, proxy: Proxy, protocol: int) -> None:
    """Defect: the kernel keeps a closed MPTCP connection for 60 s, and silently drops the received data."""
    proxy_address, origin = (module_testbed[name].service_address() for name in ("proxy", "origin"))
    command = python_command(CLIENT, proxy_address, str(PROXY_PORT), origin, str(protocol))
    size, failure, seconds = json.loads(module_testbed["client"].run(command, timeout=150).stdout)
    print(f"{failure} after {seconds:.2f} s")
    assert size > 100_000
    assert failure in ("BrokenPipeError", "ConnectionResetError")
    assert seconds < MAX_SECONDS
    closing_connections = ["ss", "-HMtan", "state", "fin-wait-2", "sport", "=", f":{PROXY_PORT}"]
    wait_until(
        lambda: not module_testbed["proxy"].run(closing_connections).stdout,
        "the connection is closed",
        timeout=MAX_SECONDS,
    )
