"""What the relay's kernel tests share: a relay with two uplinks between a client and two proxies, and who sent what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.services import RELAY_CONFIG, Origin, Proxy, start_origin, start_proxy, start_relay

UPLINKS = ("eth0", "wlan0")
PEER = "cache_peer {address} parent 3128 0 no-query no-digest connect-timeout=3 connect-fail-limit=2 name={name}"
FILES = {"small.bin": 100_000, "large.bin": 12_000_000}


def peer(node: LiveNode, family: int = 4) -> str:
    return PEER.format(address=node.service_address(family), name=node.name)


def configuration(node: LiveNode, *statements: str, name: str = "relay.conf") -> Path:
    """Write a relay's configuration: the one that is shipped, *statements* after it, and no waiting at the end."""
    text = "\n".join([f"include {RELAY_CONFIG}", *statements, "shutdown_lifetime 0 seconds", ""])
    return node.write(name, text)


@dataclass(frozen=True)
class Chain:
    """Origin, parents and relay of a testbed, all of them running."""

    testbed: Testbed
    origin: Origin
    parents: tuple[Proxy, ...]
    relay: Proxy

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    @property
    def node(self) -> LiveNode:
        """The relay's."""
        return self.testbed["relay"]

    @contextmanager
    def received(self) -> Iterator[dict[str, int]]:
        """Fill in, at the end, the bytes that came in by each uplink."""
        found: dict[str, int] = {}
        before = self.node.counters()
        yield found
        after = self.node.counters()
        found |= {device: after[device].received - before[device].received for device in UPLINKS}

    @contextmanager
    def sent(self) -> Iterator[dict[str, int]]:
        """The same of what went out."""
        found: dict[str, int] = {}
        before = self.node.counters()
        yield found
        after = self.node.counters()
        found |= {device: after[device].sent - before[device].sent for device in UPLINKS}


def chain(
    testbed: Testbed,
    parents: Sequence[str] = ("proxy",),
    *,
    statements: Sequence[str] = (),
    tls_port: int | None = None,
) -> Chain:
    """Start an origin, a proxy on each of *parents*, and a relay that has them for parents, in this order."""
    origin = start_origin(testbed["origin"], FILES, tls_port=tls_port)
    proxies = tuple(start_proxy(testbed[name]) for name in parents)
    node = testbed["relay"]
    relay = start_relay(node, configuration(node, *(peer(testbed[name]) for name in parents), *statements))
    return Chain(testbed, origin, proxies, relay)
