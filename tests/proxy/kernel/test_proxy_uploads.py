# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for uploads through the proxy to an origin that is slower than the client."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proxying import curl_command

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import Proxy, python_command, start_proxy, wait_until

pytestmark = pytest.mark.kernel
SIZE = 16_000_000
"""More bytes than Squid's request buffer (client_request_buffer_max_size, 512 KB) and all socket buffers together."""
SLOW_SINK = """
import http.server, socket, sys, time
class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_PUT(self):
        size = remaining = int(self.headers["Content-Length"])
        while remaining > 0 and (chunk := self.rfile.read1(min(remaining, 65536))):
            remaining -= len(chunk)
            time.sleep(0.01)
        answer = str(size - remaining).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
class Server(http.server.ThreadingHTTPServer):
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        super().server_bind()
Server(("", 8081), Sink).serve_forever()
"""


@pytest.fixture(scope="module")
def proxy(module_testbed: Testbed, require: Callable[..., None]) -> Proxy:
    require("squid", "curl", "gcc", "mptcpize")
    origin = module_testbed["origin"]
    sink = origin.popen(python_command(SLOW_SINK), name="slow-sink")
    listening = ["ss", "-Htln", "sport", "=", ":8081"]
    wait_until(lambda: bool(origin.run(listening).stdout), "the origin listens", process=sink)
    return start_proxy(module_testbed["proxy"])


@pytest.mark.parametrize("mptcp", [False, True], ids=["TCP", "MPTCP"])
def test_large_upload_to_a_slow_origin_arrives_complete(module_testbed: Testbed, proxy: Proxy, mptcp: bool) -> None:
    """Squid 5 treats a read into its full buffer as the end of the upload (bug 5405)."""
    client = module_testbed["client"]
    body = client.directory / "body"
    body.write_bytes(bytes(SIZE))
    options = ["-m", "300", "-H", "Expect:", "-T", str(body), "-w", " %{http_code}"]
    url = "http://10.77.9.2:8081/x"
    answer = client.run(
        curl_command(url, proxy.url(), mptcp=mptcp, tunnel=False, options=options), check=False, timeout=310
    )
    assert answer.stdout == f"{SIZE} 200", answer.stdout[-300:]
