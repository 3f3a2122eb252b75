# SPDX-License-Identifier: GPL-2.0-or-later
"""A client of the proxy and the segments of both ends, for the tracker's tests.

The segments have correct sequence numbers, keys and HMACs, unless a test requests wrong ones.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mptcp_throttler.mptcp.model import (
    Event,
    FourTuple,
    KernelEvent,
    KernelEventKind,
    KernelSubflow,
    Segment,
)
from mptcp_throttler.mptcp.options import (
    MpCapable,
    MpJoinAck,
    MpJoinSyn,
    MpJoinSynAck,
    MptcpOption,
    join_ack_hmac,
    token_of_key,
)
from mptcp_throttler.mptcp.tracker import Tracker

PROXY, PORT = "192.0.2.1", 3128
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
OPENED, ACTIVE, CHANGED = "connection-opened", "subflow-active", "subflow-changed"
CLOSED, REFUSED, ENDED, DISAGREE = "subflow-closed", "join-refused", "connection-closed", "disagreement"
"""Kinds of events that the tracker emits."""


def join_syn_ack_hmac(key_a: bytes, key_b: bytes, nonce_a: bytes, nonce_b: bytes) -> bytes:
    """Return the truncated HMAC of host B, which answers a join (RFC 8684, 3.2)."""
    return hmac.digest(key_b + key_a, nonce_b + nonce_a, "sha256")[:8]


def address_bytes(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


class Host:
    """A client with one MPTCP connection to the proxy: its keys, its token and the current time."""

    def __init__(self, name: str = "phone", time: float = 1000.0) -> None:
        seed = hashlib.sha256(name.encode()).digest()
        self.name = name
        self.time = time
        self.client_key, self.proxy_key = seed[:8], seed[8:16]
        self.token = token_of_key(self.proxy_key)

    def initial(self, address: str = "198.51.100.1", port: int = 40000, **more: str) -> ClientSubflow:
        return ClientSubflow(self, address, port, True, **more)

    def join(self, address: str = "203.0.113.1", port: int = 50000, **more: str) -> ClientSubflow:
        return ClientSubflow(self, address, port, False, **more)

    def close_event(self) -> KernelEvent:
        return KernelEvent(self.tick(), KernelEventKind.CLOSED, self.token, None)

    def tick(self) -> float:
        self.time += 0.001
        return self.time


class ClientSubflow:
    """One subflow of a host, with all segments that change its state."""

    def __init__(
        self, host: Host, address: str, port: int, initial: bool, proxy: str = PROXY, interface: str = "eth0"
    ) -> None:
        self.host, self.is_initial, self.interface = host, initial, interface
        self.four_tuple = FourTuple(address_bytes(proxy), PORT, address_bytes(address), port)
        seed = hashlib.sha256(f"{host.name} {address} {port}".encode()).digest()
        self.client_isn, self.proxy_isn = (int.from_bytes(seed[at : at + 4], "big") for at in (0, 4))
        self.nonce_client, self.nonce_proxy = seed[8:12], seed[12:16]
        self.remote_id, self.local_id, self.backup = (0, 0, False) if initial else (seed[16], 0, False)

    def later_attempt(self) -> ClientSubflow:
        """Return a later attempt with the same four-tuple."""
        other = ClientSubflow.__new__(ClientSubflow)
        other.__dict__.update(self.__dict__)
        other.client_isn = (self.client_isn + 77_777) % 2**32
        other.proxy_isn = (self.proxy_isn + 99_999) % 2**32
        other.nonce_proxy = bytes(reversed(self.nonce_proxy))
        return other

    def from_client(self, flags: int, *options: MptcpOption, sequence: int = 1, acknowledgment: int = 1) -> Segment:
        t = self.four_tuple
        number = (self.client_isn + sequence) % 2**32
        acknowledged = (self.proxy_isn + acknowledgment) % 2**32 if flags & ACK else 0
        return Segment(
            self.host.tick(),
            self.interface,
            t.remote,
            t.remote_port,
            t.local,
            t.local_port,
            flags,
            number,
            acknowledged,
            options,
        )

    def from_proxy(self, flags: int, *options: MptcpOption, sequence: int = 1, acknowledgment: int = 1) -> Segment:
        t = self.four_tuple
        number = (self.proxy_isn + sequence) % 2**32
        acknowledged = (self.client_isn + acknowledgment) % 2**32 if flags & ACK else 0
        return Segment(
            self.host.tick(),
            self.interface,
            t.local,
            t.local_port,
            t.remote,
            t.remote_port,
            flags,
            number,
            acknowledged,
            options,
        )

    def syn(self, *options: MptcpOption, **changes: object) -> Segment:
        host = self.host
        if not options and self.is_initial:
            options = (MpCapable(1, 1),)
        elif not options:
            options = (MpJoinSyn(self.backup, self.remote_id, host.token, self.nonce_client),)
        return replace(self.from_client(SYN, *options, sequence=0), **changes)  # type: ignore[arg-type]

    def plain_syn(self) -> Segment:
        return self.from_client(SYN, sequence=0)

    def syn_ack(self, *options: MptcpOption) -> Segment:
        host = self.host
        if not options and self.is_initial:
            options = (MpCapable(1, 1, host.proxy_key),)
        elif not options:
            proof = join_syn_ack_hmac(host.client_key, host.proxy_key, self.nonce_client, self.nonce_proxy)
            options = (MpJoinSynAck(False, self.local_id, proof, self.nonce_proxy),)
        return self.from_proxy(SYN | ACK, *options, sequence=0)

    def plain_syn_ack(self) -> Segment:
        return self.from_proxy(SYN | ACK, sequence=0)

    def ack(self, forged: bool = False) -> Segment:
        host = self.host
        if self.is_initial:
            proxy_key = bytes(8) if forged else host.proxy_key
            return self.from_client(ACK, MpCapable(1, 1, host.client_key, proxy_key))
        proof = join_ack_hmac(host.client_key, host.proxy_key, self.nonce_client, self.nonce_proxy)
        return self.from_client(ACK, MpJoinAck(bytes(20) if forged else proof))

    def fin(self) -> Segment:
        return self.from_client(FIN | ACK)

    def proxy_fin(self) -> Segment:
        return self.from_proxy(FIN | ACK)

    def rst(self, *options: MptcpOption) -> Segment:
        return self.from_client(RST | ACK, *options)

    def proxy_rst(self, *options: MptcpOption) -> Segment:
        return self.from_proxy(RST | ACK, *options)

    def handshake(self) -> list[Segment]:
        return [self.syn(), self.syn_ack(), self.ack()]

    def established(self) -> list[Segment | KernelEvent]:
        """Return the handshake and the kernel's event after it."""
        kind = KernelEventKind.CREATED if self.is_initial else KernelEventKind.SUBFLOW_ESTABLISHED
        return [*self.handshake(), self.kernel_event(kind)]

    def kernel_event(self, kind: KernelEventKind, **changes: object) -> KernelEvent:
        event = KernelEvent(
            self.host.tick(), kind, self.host.token, self.four_tuple, self.local_id, self.remote_id, self.backup
        )
        return replace(event, **changes)  # type: ignore[arg-type]

    def kernel_subflow(self, **changes: Any) -> KernelSubflow:
        entry = KernelSubflow(
            self.host.token, self.four_tuple, self.is_initial, self.local_id, self.remote_id, self.backup, 0.0
        )
        return entry._replace(**changes)


def feed(tracker: Tracker, *items: Segment | KernelEvent) -> list[Event]:
    events = []
    for item in items:
        events += tracker.apply_segment(item) if isinstance(item, Segment) else tracker.apply_event(item)
    return events


def kinds_of_events(tracker: Tracker, *items: Segment | KernelEvent) -> list[str]:
    """Return the kinds of the events that *items* cause."""
    return kinds(feed(tracker, *items))


def open_connection(tracker: Tracker, host: Host) -> ClientSubflow:
    """Open a connection and return its first subflow."""
    subflow = host.initial()
    assert kinds_of_events(tracker, *subflow.established()) == [OPENED, ACTIVE]
    return subflow


def kinds(events: Iterable[Event]) -> list[str]:
    return [event.kind.value for event in events]


def known_subflows(tracker: Tracker, host: Host) -> list[FourTuple]:
    connection = tracker.connections.get(host.token)
    return [subflow.four_tuple for subflow in connection.subflows] if connection else []
