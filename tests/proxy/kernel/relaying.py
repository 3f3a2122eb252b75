# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers of the relay's kernel tests: a relay with two uplinks between a client and two proxies, and byte counters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mptcp_lab.agent.processes import with_mounts
from mptcp_lab.testbed import LiveNode, Process, Testbed
from mptcp_lab.testbed.services import (
    RELAY_CONFIG,
    Origin,
    Proxy,
    program,
    python_command,
    start_origin,
    start_proxy,
    start_relay,
    wait_until,
)

UPLINKS = ("eth0", "wlan0")
PEER = "cache_peer {address} parent 3128 0 no-query no-digest connect-timeout=3 connect-fail-limit={limit} name={name}"
MAX_DOWNLOAD_SECONDS = 240
"""Maximum seconds for a download. The links have 60 Mbit/s, or 20 after the loss of an uplink."""
FILES = {"small.bin": 100_000, "large.bin": 12_000_000}
NAME_SERVER = """
import json, socket, struct, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 53))
print("ready", flush=True)
while True:
    query, client = server.recvfrom(512)
    labels, offset = [], 12
    while query[offset]:
        labels.append(query[offset + 1 : offset + 1 + query[offset]].decode()); offset += 1 + query[offset]
    question = query[12 : offset + 5]
    kind = {1: socket.AF_INET, 28: socket.AF_INET6}.get(struct.unpack("!H", query[offset + 1 : offset + 3])[0])
    addresses = json.load(open(sys.argv[2])).get(".".join(labels).lower(), [])
    matching = [a for a in addresses if kind and (":" in a) == (kind == socket.AF_INET6)]
    answers = b"".join(
        b"\\xc0\\x0c" + question[-4:] + struct.pack("!IH", 1, len(data)) + data
        for data in (socket.inet_pton(kind, a) for a in matching)
    )
    head = query[:2] + struct.pack("!HHHHH", 0x8180 if addresses else 0x8183, 1, len(matching), 0, 0)
    server.sendto(head + question + answers, client)
"""
"""A name server. For each query, it rereads a JSON file (name to addresses), and answers with a TTL of one second."""


def peer_statement(node: LiveNode, family: int = 4, limit: int = 2) -> str:
    return PEER.format(address=node.service_address(family), limit=limit, name=node.name)


def write_configuration(node: LiveNode, *statements: str, appended: str = "") -> Path:
    """Write a relay's configuration with *statements* in place of the parents; Squid does not wait at shutdown."""
    text, count = re.subn(r"^#cache_peer .*$", "\n".join(statements), RELAY_CONFIG.read_text(), flags=re.MULTILINE)
    assert count == 1
    return node.write("relay.conf", f"{text}{appended}shutdown_lifetime 0 seconds\n")


def start_name_server(node: LiveNode, address: str, names: Mapping[str, Sequence[str]]) -> tuple[Path, dict[str, str]]:
    """Start a name server at *address*. Return its data file, and mounts for a program that uses it."""
    data_file = node.write("names.json", json.dumps(names))
    process = node.popen(python_command(NAME_SERVER, address, str(data_file)), name="name-server")
    wait_until(lambda: "ready" in process.output(), "the name server answers", process=process)
    return data_file, {"/etc/resolv.conf": str(node.write("resolv.conf", f"nameserver {address}\n"))}


@dataclass(frozen=True)
class Chain:
    """The running origin, parents and relay of a testbed."""

    testbed: Testbed
    origin: Origin
    parents: tuple[Proxy, ...]
    relay: Proxy
    config: Path

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    @property
    def node(self) -> LiveNode:
        """Return the relay's node."""
        return self.testbed["relay"]

    @contextmanager
    def count_uplink_bytes(self, *, sent: bool = False) -> Iterator[dict[str, int]]:
        """Yield a dict; when the block ends, fill it with the number of bytes that each uplink received, or sent."""
        increases: dict[str, int] = {}
        before = self.uplink_bytes(sent=sent)
        yield increases
        increases |= {device: size - before[device] for device, size in self.uplink_bytes(sent=sent).items()}

    def uplink_bytes(self, *, sent: bool = False) -> dict[str, int]:
        counters = self.node.counters()
        return {device: counters[device].sent if sent else counters[device].received for device in UPLINKS}

    def logged_requests(self, number: int) -> int:
        """Return the number of requests that parent *number* has logged. Squid's probe connections contain no
        request."""
        log = self.parents[number].logs / "access.log"
        return len(re.findall(r" (?:GET|CONNECT) ", log.read_text())) if log.exists() else 0

    def wait_for_requests(self, *requests: int) -> None:
        """Wait until each parent has logged this many requests.

        Squid logs a request when the connections to client and server are closed.
        """
        numbers = range(len(requests))
        wait_until(lambda: tuple(map(self.logged_requests, numbers)) == requests, f"the parents have served {requests}")

    def doctor(self, user: Sequence[str] = ()) -> dict[str, dict[str, str]]:
        """Return the findings of ``mptcp-proxy doctor`` on the relay. The command prefix *user* changes the user."""
        argv = [*user, program("mptcp-proxy"), "doctor", "--role", "relay", "--json", "--config", str(self.config)]
        mounts = {"/run/mptcprelay": str(self.relay.state)}
        answer = self.node.run(with_mounts(argv, mounts), check=False, timeout=120)
        return {finding["check"]: finding for finding in json.loads(answer.stdout)}


def start_chain(
    testbed: Testbed,
    parents: Sequence[str] = ("proxy",),
    *,
    peers: Sequence[str] | None = None,
    statements: Sequence[str] = (),
    appended: str = "",
    env: Mapping[str, str] | None = None,
    mounts: Mapping[str, str] | None = None,
) -> Chain:
    """Start an origin with HTTP and HTTPS, a proxy on each of *parents*, and a relay that has these as parents.

    *peers* replace the statements that name the parents. *statements* follow them. *appended* is the end of the file.
    """
    origin = start_origin(testbed["origin"], FILES, ports=(80,), tls_port=443)
    proxies = tuple(start_proxy(testbed[name]) for name in parents)
    node = testbed["relay"]
    # docs/relay.md advises this. Kernels before 6.12 do not have the sysctl.
    node.run(["sysctl", "-qw", "net.mptcp.blackhole_timeout=0"], check=False)
    parent_statements = [peer_statement(testbed[name]) for name in parents] if peers is None else peers
    config = write_configuration(node, *parent_statements, *statements, appended=appended)
    return Chain(testbed, origin, proxies, start_relay(node, config, env=env, mounts=mounts), config)


@dataclass(frozen=True)
class Download:
    """A running download."""

    process: Process
    file: Path

    def wait_for_content(self) -> bytes:
        """Wait until the download ends, and return its content."""
        assert self.process.wait(MAX_DOWNLOAD_SECONDS + 10) == 0, self.process.output()
        return self.file.read_bytes()
