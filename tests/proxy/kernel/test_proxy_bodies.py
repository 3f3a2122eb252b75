# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that bodies of many sizes and framings, sent whole or in pieces, arrive unchanged through any Squid."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from proxying import all_workers, configuration, workers

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
# An origin for "/SIZE/FRAMING/MANNER". It sends header and body together (whole), separately, or in small pieces. It
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
        size, framing, manner = path.strip("/").split("/")
        body, lines = body_of(int(size)), ["HTTP/1.1 200 OK"]
        requested = "bytes=1-9999999" if variant == "unrequested" else self.headers.get("Range", "")
        wanted = re.fullmatch(r"bytes=(\\d+)-(\\d+)", requested)
        if wanted and variant != "all":
            first, last = int(wanted[1]), min(int(wanted[2]), len(body) - 1)
            lines = ["HTTP/1.1 206 Partial Content", f"Content-Range: bytes {first}-{last}/{len(body)}"]
            body = body[first : last + 1]
        if framing == "length":
            lines.append(f"Content-Length: {len(body)}")
        elif framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
            step = max(1, len(body) // 3)
            parts = [body[at : at + step] for at in range(0, len(body), step)]
            body = b"".join(b"%x\\r\\n%b\\r\\n" % (len(part), part) for part in [*parts, b""])
        else:
            lines.append("Connection: close")
            self.close_connection = True
        header = ("\\r\\n".join(lines) + "\\r\\n\\r\\n").encode()
        sent = header + body if with_body else header
        first = {"whole": len(sent), "separate": len(header), "pieces": 700}[manner]
        self.wfile.write(sent[:first])
        for at in range(first, len(sent), 20_000):
            time.sleep(0.002)
            self.wfile.write(sent[at : at + 20_000])
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
sizes, framings, manners, range_framings = json.load(sys.stdin)
class KeptOpen(io.BufferedReader):
    "A reader that stays open when http.client closes it after an answer, because more answers follow."
    def close(self):
        pass
    def makefile(self, mode):
        return self
wanted = []
for size, framing, manner in itertools.product(sizes, framings, manners):
    body = body_of(size)
    place = f"{size}/{framing}/{manner}"
    wanted.append(("GET", place, "", 200, body))
    if manner == "whole":
        wanted.append(("HEAD", place, "", 200, b""))
    if manner == "whole" and framing in range_framings and size > 2:
        wanted.append(("GET", f"{place}?unrequested", "", 206, body[1:]))
        for first in (0, 1, size // 3):
            last = first + size // 2
            wanted.append(("GET", place, f"Range: bytes={first}-{last}\\r\\n", 206, body[first : last + 1]))
            wanted.append(("GET", f"{place}?all", f"Range: bytes={first}-{last}\\r\\n", 200, body))
wrong = []
while wanted:
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, int(protocol))
    connection.settimeout(30)
    connection.connect((proxy, int(port)))
    reader = KeptOpen(socket.SocketIO(connection, "rb"))
    is_open, answers = True, 0
    while wanted and is_open:
        batch = wanted[: int(number)]
        requests = [
            f"{method} http://{origin}/{place} HTTP/1.1\\r\\nHost: {origin}\\r\\n{more}\\r\\n"
            for method, place, more, *_ in batch
        ]
        with contextlib.suppress(ConnectionError):
            connection.sendall("".join(requests).encode())
        for method, place, more, status, body in batch:
            answer, begun = http.client.HTTPResponse(reader, method=method), False
            try:
                answer.begin()
                begun = True
                if len(body) > 100_000 and "separate" in place:
                    time.sleep(0.05)
                got = answer.read()
            except (OSError, http.client.HTTPException) as error:
                is_open = False
                if isinstance(error, ConnectionError) and answers and not begun:
                    break  # The proxy may close a persistent connection: try again on a new one, as browsers do.
                wrong.append([method, place, more, type(error).__name__])
                del wanted[0]
                break
            answers += 1
            if (answer.status, got) != (status, body):
                wrong.append([method, place, more, answer.status, len(got)])
            del wanted[0]
            if answer.will_close:
                is_open = False
                break
    connection.close()
print(json.dumps(wrong))
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
    return testbed, start_proxy(testbed["proxy"], configuration(testbed["proxy"]))


@pytest.mark.parametrize("number", [1, 3], ids=["one by one", "pipelined"])
@pytest.mark.parametrize("protocol", [TCP, MPTCP], ids=["TCP", "MPTCP"])
def test_bodies_arrive_unchanged(site: tuple[Testbed, Proxy], protocol: int, number: int) -> None:
    testbed, proxy = site
    address, origin = (testbed[name].service_address() for name in ("proxy", "origin"))
    command = python_command(CLIENT, address, str(PROXY_PORT), f"{origin}:{PORT}", str(protocol), str(number))
    squid = find_squid()
    # With Debian's Squid, a client waits forever for the end of a range without a length (chunked-range.patch).
    range_framings = FRAMINGS if squid and squid.has_mptcp_option else ["length"]
    wanted = json.dumps([SIZES, FRAMINGS, SEND_MODES, range_framings])
    before = all_workers(proxy)
    wrong = json.loads(testbed["client"].run(command, timeout=240, input=wanted).stdout)
    assert wrong == [], "\n".join(map(str, wrong))
    assert workers(proxy.process) == before, "a request ended Squid"
