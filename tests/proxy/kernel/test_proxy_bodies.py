# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that bodies of many sizes and framings, sent whole or in pieces, arrive unchanged through any Squid."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from proxying import wait_for_workers, worker_pids, write_configuration

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import PROXY_PORT, Proxy, python_command, start_proxy, wait_until
from mptcp_proxy.squid import find_squid

pytestmark = pytest.mark.kernel
TCP, MPTCP = 6, 262
PORT = 8000
# Sizes around those of Squid's buffers, which are 4, 16 and 64 KB.
SIZES = (0, 1, 1000, 3500, 4095, 4096, 4097, 5000, 16_384, 65_535, 65_536, 70_001, 300_000)
FRAMINGS = ("length", "chunked", "close")
SEND_MODES = ("whole", "separate", "pieces")
BODY = """
import random
def body_of(size):
    return random.Random(size).randbytes(size)
"""
# An origin for "/SIZE/FRAMING/SEND_MODE". It sends header and body together (whole), separately, or in small pieces. It
# answers range requests, except with "?all"; with "?unrequested" it sends a range that the client did not request.
ORIGIN = (
    BODY
    + """
import http.server, re, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *words):
        pass
    def do_HEAD(self):
        self.answer(False)
    def do_GET(self):
        self.answer(True)
    def answer(self, with_body):
        path, _, variant = self.path.partition("?")
        size, framing, send_mode = path.strip("/").split("/")
        body, lines = body_of(int(size)), ["HTTP/1.1 200 OK"]
        requested = "bytes=1-9999999" if variant == "unrequested" else self.headers.get("Range", "")
        byte_range = re.fullmatch(r"bytes=(\\d+)-(\\d+)", requested)
        if byte_range and variant != "all":
            first, last = int(byte_range[1]), min(int(byte_range[2]), len(body) - 1)
            lines = ["HTTP/1.1 206 Partial Content", f"Content-Range: bytes {first}-{last}/{len(body)}"]
            body = body[first : last + 1]
        if framing == "length":
            lines.append(f"Content-Length: {len(body)}")
        elif framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
            step = max(1, len(body) // 3)
            parts = [body[offset : offset + step] for offset in range(0, len(body), step)]
            body = b"".join(b"%x\\r\\n%b\\r\\n" % (len(part), part) for part in [*parts, b""])
        else:
            lines.append("Connection: close")
            self.close_connection = True
        header = ("\\r\\n".join(lines) + "\\r\\n\\r\\n").encode()
        sent = header + body if with_body else header
        first = {"whole": len(sent), "separate": len(header), "pieces": 700}[send_mode]
        self.wfile.write(sent[:first])
        for offset in range(first, len(sent), 20_000):
            time.sleep(0.002)
            self.wfile.write(sent[offset : offset + 20_000])
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True
Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""
)
# A client that opens one connection after the other, sends "number" requests on each, and prints the errors.
CLIENT = (
    BODY
    + """
import contextlib, http.client, io, itertools, json, socket, sys, time
proxy, port, origin, protocol, number = sys.argv[1:]
sizes, framings, send_modes, range_framings = json.load(sys.stdin)
class KeptOpen(io.BufferedReader):
    "A reader that stays open when http.client closes it after an answer, because more answers follow."
    def close(self):
        pass
    def makefile(self, mode):
        return self
remaining = []
for size, framing, send_mode in itertools.product(sizes, framings, send_modes):
    body = body_of(size)
    path = f"{size}/{framing}/{send_mode}"
    remaining.append(("GET", path, "", 200, body))
    if send_mode == "whole":
        remaining.append(("HEAD", path, "", 200, b""))
    if send_mode == "whole" and framing in range_framings and size > 2:
        remaining.append(("GET", f"{path}?unrequested", "", 206, body[1:]))
        for first in (0, 1, size // 3):
            last = first + size // 2
            remaining.append(("GET", path, f"Range: bytes={first}-{last}\\r\\n", 206, body[first : last + 1]))
            remaining.append(("GET", f"{path}?all", f"Range: bytes={first}-{last}\\r\\n", 200, body))
errors = []
while remaining:
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, int(protocol))
    connection.settimeout(30)
    connection.connect((proxy, int(port)))
    reader = KeptOpen(socket.SocketIO(connection, "rb"))
    is_open, answers = True, 0
    while remaining and is_open:
        batch = remaining[: int(number)]
        requests = [
            f"{method} http://{origin}/{path} HTTP/1.1\\r\\nHost: {origin}\\r\\n{field}\\r\\n"
            for method, path, field, *_ in batch
        ]
        with contextlib.suppress(ConnectionError):
            connection.sendall("".join(requests).encode())
        for method, path, field, status, body in batch:
            answer, has_begun = http.client.HTTPResponse(reader, method=method), False
            try:
                answer.begin()
                has_begun = True
                if len(body) > 100_000 and "separate" in path:
                    time.sleep(0.05)
                received = answer.read()
            except (OSError, http.client.HTTPException) as error:
                is_open = False
                if isinstance(error, ConnectionError) and answers and not has_begun:
                    break  # The proxy may close a persistent connection: try again on a new one, as browsers do.
                errors.append([method, path, field, type(error).__name__])
                del remaining[0]
                break
            answers += 1
            if (answer.status, received) != (status, body):
                errors.append([method, path, field, answer.status, len(received)])
            del remaining[0]
            if answer.will_close:
                is_open = False
                break
    connection.close()
print(json.dumps(errors))
"""
)


@pytest.fixture(scope="module", params=["Debian's", "with patches"])
def site(
    request: pytest.FixtureRequest, make_module_testbed: Callable[..., Testbed], require: Callable[..., None]
) -> tuple[Testbed, Proxy]:
    require("squid", "gcc")
    if request.param == "with patches":
        request.getfixturevalue("squid_with_patches")
    testbed = make_module_testbed()
    origin = testbed["origin"]
    process = origin.popen(python_command(ORIGIN, origin.service_address(), str(PORT)), name="bodies")
    listening = ["ss", "-Hltn", "sport", "=", f":{PORT}"]
    wait_until(lambda: bool(origin.run(listening).stdout), "the origin listens", process=process)
    return testbed, start_proxy(testbed["proxy"], write_configuration(testbed["proxy"]))


@pytest.mark.parametrize("number", [1, 3], ids=["one by one", "pipelined"])
@pytest.mark.parametrize("protocol", [TCP, MPTCP], ids=["TCP", "MPTCP"])
def test_bodies_arrive_unchanged(site: tuple[Testbed, Proxy], protocol: int, number: int) -> None:
    testbed, proxy = site
    address, origin = (testbed[name].service_address() for name in ("proxy", "origin"))
    command = python_command(CLIENT, address, str(PROXY_PORT), f"{origin}:{PORT}", str(protocol), str(number))
    squid = find_squid()
    # With Debian's Squid, a client waits forever for the end of a range without a length (chunked-range.patch).
    range_framings = FRAMINGS if squid and squid.has_mptcp_option else ["length"]
    parameters = json.dumps([SIZES, FRAMINGS, SEND_MODES, range_framings])
    before = wait_for_workers(proxy)
    errors = json.loads(testbed["client"].run(command, timeout=240, input=parameters).stdout)
    assert errors == [], "\n".join(map(str, errors))
    assert worker_pids(proxy.process) == before, "a request ended Squid"
