# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the shipped conf/squid.conf: names without an address, other protocols and malformed messages."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from proxying import write_configuration
from time_limit import shortest_time

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.services import python_command, start_proxy, wait_until

pytestmark = pytest.mark.kernel
ORIGIN = "10.77.9.2"
CONNECT_SECONDS = 5.0
"""The connect_timeout of the shipped squid.conf."""
REQUEST_SECONDS = 60.0
"""The request_start_timeout and request_timeout of the shipped squid.conf."""
OK_PORT, BANNER_PORT, STRAY_PORT, WEBSOCKET_PORT = 2001, 2002, 2003, 2004
"""Ports of the origin's servers.

The first server sends a valid answer; the second sends the greeting of a mail server; the third sends an answer without
a body and then more bytes; the last accepts an upgrade.
"""
SILENT_ADDRESS = "10.77.9.66"
"""An address that sends no answer, not even an ICMP error."""
# A name server for names that contain "known". The first address of those that contain "half-dead" is SILENT_ADDRESS.
NAME_SERVER = """
import socket, struct
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 53))
while True:
    query, client = server.recvfrom(2048)
    end = 12
    while query[end]:
        end += query[end] + 1
    question, kind = query[12 : end + 5], struct.unpack("!H", query[end + 1 : end + 3])[0]
    is_known = b"known" in question
    silent = [socket.inet_aton("10.77.9.66")] if b"half-dead" in question else []
    addresses = [*silent, socket.inet_aton("10.77.9.2")] if is_known and kind == 1 else []
    answers = b"".join(b"\\xc0\\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + each for each in addresses)
    flags = 0x8180 if is_known else 0x8183
    server.sendto(query[:2] + struct.pack("!HHHHH", flags, 1, len(addresses), 0, 0) + question + answers, client)
"""
ANSWERS = {
    OK_PORT: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    BANNER_PORT: b"220 mail.example ESMTP\r\n",
    STRAY_PORT: b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray",
}
SERVERS = """
import socket, sys, threading
def serve(port, answer):
    listener = socket.create_server(("", port))
    while True:
        connection, _ = listener.accept()
        with open(sys.argv[1], "ab") as record:
            record.write(connection.recv(65536))
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
for port, answer in %r.items():
    threading.Thread(target=serve, args=(port, answer)).start()
"""
# A server that accepts an upgrade, immediately sends ten bytes, and returns all received bytes in upper case.
UPGRADE_SERVER = """
import socket, sys
listener = socket.create_server(("", int(sys.argv[1])))
while True:
    connection, _ = listener.accept()
    request = b""
    while b"\\r\\n\\r\\n" not in request:
        request += connection.recv(65536)
    head = b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n"
    connection.sendall(head + b"0123456789")
    while data := connection.recv(65536):
        connection.sendall(data.upper())
    connection.close()
"""
# A client that twice sends ten bytes, each time after the server has returned all earlier bytes.
UPGRADE_CLIENT = """
import json, socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, int(sys.argv[3])) as proxy:
    proxy.settimeout(60)
    proxy.connect((sys.argv[1], 3128))
    proxy.sendall(sys.argv[2].encode())
    answer = b""
    def read(size):
        global answer
        while len(answer.partition(b"\\r\\n\\r\\n")[2]) < size:
            chunk = proxy.recv(65536)
            assert chunk, answer
            answer += chunk
    read(10)
    for number, data in enumerate((b"abcdefghij", b"klmnopqrst"), 2):
        proxy.sendall(data)
        read(10 * number)
print(json.dumps(answer.decode("latin-1")))
"""
CLIENT = """
import json, socket, sys
with socket.create_connection((sys.argv[1], 3128), timeout=60) as proxy:
    proxy.sendall(sys.argv[2].encode())
    answer = b""
    try:
        while chunk := proxy.recv(65536):
            answer += chunk
            if sys.argv[3] == "one" and b"\\r\\n\\r\\n" in answer:
                break
    except TimeoutError:
        pass
print(json.dumps(answer.decode("latin-1")))
"""


# A client that sends the beginning of each request, does not continue, and reports how long the proxy waited.
UNFINISHED = """
import json, select, socket, sys, time
start = time.monotonic()
waiting = {}
for beginning in sys.argv[2:]:
    connection = socket.create_connection((sys.argv[1], 3128), timeout=60)
    connection.sendall(beginning.encode())
    waiting[connection] = beginning
durations = {}
while waiting and time.monotonic() < start + 280:
    for connection in select.select(list(waiting), [], [], 1)[0]:
        if not connection.recv(65536):
            durations[waiting.pop(connection)] = time.monotonic() - start
print(json.dumps(durations))
"""


@dataclass
class Scene:
    """A client of the proxy, and origins that record the requests they receive."""

    client: LiveNode
    record: Path

    def send(self, request: str, *, until_close: bool = True) -> str:
        """Send *request*. Return all data until the proxy closes, or without *until_close* until the end of the
        header."""
        lines = request.replace("\n", "\r\n")
        output = self.client.run(
            python_command(CLIENT, "10.77.8.2", lines, "all" if until_close else "one"), timeout=90
        )
        answer: str = json.loads(output.stdout)
        return answer

    def status(self, request: str) -> int:
        return int(self.send(request).split()[1])


@pytest.fixture(scope="module")
def scene(module_testbed: Testbed, require: Callable[..., None]) -> Scene:
    require("squid", "gcc")
    origin = module_testbed["origin"]
    record = module_testbed.directory / "record"
    origin.popen(python_command(NAME_SERVER), name="names")
    origin.popen(python_command(SERVERS % ANSWERS, str(record)), name="servers")
    origin.popen(python_command(UPGRADE_SERVER, str(WEBSOCKET_PORT)), name="websocket")
    for port in (STRAY_PORT, WEBSOCKET_PORT):
        wait_until(partial(listens, origin, port), "the origin listens")
    proxy = module_testbed["proxy"]
    start_proxy(proxy, write_configuration(proxy, f"dns_nameservers {ORIGIN}"))
    return Scene(module_testbed["client"], record)


def listens(node: LiveNode, port: int) -> bool:
    return bool(node.run(["ss", "-Htln", "sport", "=", f":{port}"]).stdout)


def get(url: str, *headers: str) -> str:
    return "\n".join([f"GET {url} HTTP/1.1", f"Host: {ORIGIN}", "Connection: close", *headers, "", ""])


def test_plain_requests_are_answered(scene: Scene) -> None:
    """If the proxy refused everything, the refusals in the other tests would prove nothing."""
    assert scene.status(get(f"http://{ORIGIN}:{OK_PORT}/")) == 200
    assert scene.status(get(f"http://known.example:{OK_PORT}/")) == 200


def test_silent_address_delays_a_request_only_briefly(scene: Scene, module_testbed: Testbed) -> None:
    """Without connect_timeout, Squid waits a minute for such an address."""
    core = module_testbed["core"]
    (device,) = (link["dev"] for link in json.loads(core.run(["ip", "-j", "route", "get", ORIGIN]).stdout))
    unused = [SILENT_ADDRESS, "lladdr", "02:00:00:00:00:66", "dev", device]
    numbers = count()

    def duration() -> float:
        # Use a new name each time: for a known name Squid skips the silent address.
        start_time = time.monotonic()
        assert scene.status(get(f"http://half-dead-{next(numbers)}.known.example:{OK_PORT}/")) == 200
        return time.monotonic() - start_time

    with core.changed(["ip", "neigh", "add", *unused], ["ip", "neigh", "del", *unused]):
        # Squid's timers have a resolution of a second.
        assert CONNECT_SECONDS - 1 <= shortest_time(duration, 4 * CONNECT_SECONDS) < 4 * CONNECT_SECONDS


@pytest.mark.nightly
def test_unfinished_request_ends_after_the_timeout(scene: Scene) -> None:
    """Without the timeouts, Squid waits five minutes for each such client, which occupies a descriptor."""
    beginnings = ("", "GET http://", f"GET http://{ORIGIN}:{OK_PORT}/ HTTP/1.1\r\nHost: x\r\nX: ")

    def longest() -> float:
        durations = json.loads(
            scene.client.run(python_command(UNFINISHED, "10.77.8.2", *beginnings), timeout=300).stdout
        )
        assert durations.keys() == set(beginnings)
        assert min(durations.values()) >= REQUEST_SECONDS * 0.9, durations
        return float(max(durations.values()))

    assert shortest_time(longest, 3 * REQUEST_SECONDS) < 3 * REQUEST_SECONDS


def test_name_without_an_address_gives_503(scene: Scene) -> None:
    """Without the rule ``http_access deny !to_anywhere``, the status is 502, and 500 for CONNECT."""
    answer = scene.send(get(f"http://nowhere.example:{OK_PORT}/"))
    assert int(answer.split()[1]) == 503
    assert "ERR_DNS_FAIL" in answer
    # Squid keeps this connection open.
    tunnel = scene.send("CONNECT nowhere.example:443 HTTP/1.1\nHost: nowhere.example:443\n\n", until_close=False)
    assert int(tunnel.split()[1]) == 503


@pytest.mark.parametrize(
    "url",
    [
        f"ftp://{ORIGIN}:{OK_PORT}/x%0d%0aDELE%20y",
        f"whois://{ORIGIN}:{OK_PORT}/FLUSHALL",
        f"gopher://{ORIGIN}:{OK_PORT}/1",
        "urn:x:y",
    ],
)
def test_other_protocols_are_refused_without_a_connection(scene: Scene, url: str) -> None:
    before = scene.record.read_bytes() if scene.record.exists() else b""
    assert scene.status(get(url)) in (400, 403, 501)
    assert (scene.record.read_bytes() if scene.record.exists() else b"") == before


def test_answer_that_is_not_http_is_not_forwarded(scene: Scene) -> None:
    answer = scene.send(get(f"http://{ORIGIN}:{BANNER_PORT}/"))
    assert int(answer.split()[1]) == 403
    assert "ESMTP" not in answer


def test_answer_without_a_body_closes_the_connection(scene: Scene) -> None:
    """Bytes that an origin sends after the answer must not become the answer to the client's next request."""
    answer = scene.send(f"GET http://{ORIGIN}:{STRAY_PORT}/ HTTP/1.1\nHost: {ORIGIN}\n\n", until_close=False)
    head = answer.partition("\r\n\r\n")[0]
    assert head.split()[1] == "204"
    assert "\r\nConnection: close" in head


def test_get_with_a_body_is_accepted(scene: Scene) -> None:
    """Without request_entities, the status is 411."""
    assert scene.status(get(f"http://{ORIGIN}:{OK_PORT}/", "Content-Length: 3") + "abc") == 200


def test_only_an_upgrade_to_websocket_is_forwarded(scene: Scene) -> None:
    for protocol in ("websocket", "h2c"):
        scene.send(
            get(f"http://{ORIGIN}:{OK_PORT}/{protocol}", f"Upgrade: {protocol}").replace("close", "Upgrade"),
            until_close=False,
        )
    sent = scene.record.read_text()
    assert "Upgrade: websocket" in sent
    assert "Upgrade: h2c" not in sent


@pytest.mark.parametrize("protocol", [socket.IPPROTO_TCP, socket.IPPROTO_MPTCP], ids=["TCP", "MPTCP"])
def test_websocket_passes_bytes_both_ways(scene: Scene, protocol: int) -> None:
    request = (
        get(f"http://{ORIGIN}:{WEBSOCKET_PORT}/", "Upgrade: websocket")
        .replace("close", "Upgrade")
        .replace("\n", "\r\n")
    )
    output = scene.client.run(python_command(UPGRADE_CLIENT, "10.77.8.2", request, str(protocol)), timeout=90)
    head, _, received = json.loads(output.stdout).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 101 ")
    assert "Upgrade: websocket" in head
    assert received == "0123456789ABCDEFGHIJKLMNOPQRST"


def test_claimed_client_address_is_not_forwarded(scene: Scene) -> None:
    assert (
        scene.status(get(f"http://{ORIGIN}:{OK_PORT}/claims", "Forwarded: for=192.0.2.7", "X-Forwarded-For: 192.0.2.7"))
        == 200
    )
    assert "/claims" in scene.record.read_text()
    assert "192.0.2.7" not in scene.record.read_text()


@pytest.mark.parametrize("coding", ["gzip", "chunked, identity", "x"])
def test_body_with_an_unknown_coding_is_refused(scene: Scene, coding: str) -> None:
    """A server that ignored Content-Length would read the body as a request, as Squid 5 does with "identity"."""
    inner = f"GET http://{ORIGIN}:{OK_PORT}/inner HTTP/1.1\n\n"
    headers = f"Host: {ORIGIN}\nTransfer-Encoding: {coding}\nContent-Length: {len(inner) + 2}\nConnection: close\n\n"
    answer = scene.send(f"PUT http://{ORIGIN}:{OK_PORT}/coded HTTP/1.1\n{headers}{inner}")
    assert int(answer.split()[1]) in (400, 403, 411, 501)
    assert "/inner" not in scene.record.read_text()
    assert "/coded" not in scene.record.read_text()


def test_trace_is_refused(scene: Scene) -> None:
    assert scene.status(get(f"http://{ORIGIN}:{OK_PORT}/").replace("GET", "TRACE", 1)) == 403
