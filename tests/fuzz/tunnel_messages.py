# SPDX-License-Identifier: GPL-2.0-or-later
"""Fuzz target that sends messages to both ends of a tunnel: genuine, repeated and malformed messages, and messages of a
faulty relay with wrong numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from ipaddress import ip_address

from mptcp_tunnel.kernel.packets import packet_of, parse_packet
from mptcp_tunnel.learning import MAX_DELAY, MAX_RATE, MIN_RATE, SECOND
from mptcp_tunnel.message import MAX_SIZE, SIZE, VERSION, Key, Kind, Message, pack, parse, sender_of
from mptcp_tunnel.model import MAGIC, MAX_PATHS, End, Ends, PathCounters
from mptcp_tunnel.session import EXTRA_HOLD_TIME, MAX_SENT_COUNTERS, Session

KEY = Key(b"fuzz" * 8)
PROXY = End(ip_address("203.0.113.5"), 51820)
RELAYS = [End(ip_address(f"198.51.100.{number}"), 51820) for number in range(1, 5)]
"""Addresses from which the relay sends."""
OTHER_HOSTS = [End(ip_address(f"192.0.2.{number}"), 51820) for number in range(1, 5)]
"""Addresses of other hosts."""
PATHS = 3
TOKEN = 7
"""The token of the faulty relay's messages."""


class Tunnel:
    """A relay and a proxy, with the last ten messages of the relay."""

    def __init__(self) -> None:
        # The secrets are random, so that no stored input contains a valid token.
        self.relay = Session(Kind.PROBE, [PROXY] * PATHS, os.urandom(16))
        self.proxy = Session(Kind.ANSWER, [None] * MAX_PATHS, os.urandom(16))
        self.now, self.bytes = 100 * SECOND, 0
        self.recent: list[bytes] = []

    def step(self, kind: int, value: int, data: bytes) -> None:
        match kind % 6:
            case 0:  # the relay sends probes from one of its addresses
                probes = [(index, message, SIZE + value * 4) for index, message in self.relay.due_probes(self.now)]
                for index, message, size in (*probes, *self.relay.size_probes(self.now)):
                    payload = pack(message, KEY, size)
                    self.recent = [*self.recent[-9:], payload]
                    answer = self.deliver_to_proxy(payload, RELAYS[(value + index) % len(RELAYS)])
                    if answer is not None and not value & 128:
                        self.relay.receive(self.read(answer), PROXY, self.now + value)
            case 1:  # another host repeats an earlier message
                if self.recent:
                    payload = self.recent[value % len(self.recent)]
                    self.deliver_to_proxy(payload, OTHER_HOSTS[value % len(OTHER_HOSTS)])
                    assert self.relay.receive(self.read(payload), PROXY, self.now) == (None, False)
            case 2:  # an arbitrary packet arrives
                received = parse_packet(data)
                if received is not None:
                    assert received.payload in data
                    self.deliver_to_proxy(received.payload, received.ends.remote)
            case 3:  # an arbitrary payload arrives, with or without a correct authentication code
                payload = bytes([MAGIC, VERSION, Kind.PROBE]) + data
                self.deliver_to_proxy(
                    payload + KEY.code(payload) if value & 1 else payload, OTHER_HOSTS[value % len(OTHER_HOSTS)]
                )
            case 4:  # advance the time
                self.now += value * value * (SECOND // 1000)
            case _:  # one end reports packet and byte counts
                self.bytes += value << 8
                counted = [PathCounters(value, self.bytes, value, self.bytes)] * PATHS
                (self.relay if value & 1 else self.proxy).process_counters(counted, self.now)

    def send_arbitrary(self, value: int, data: bytes) -> None:
        """Send arbitrary numbers from a faulty relay, which has the key and a valid token."""
        index, kind = value % 10, Kind.ANSWER if value >= 250 else Kind.PROBE
        path = self.relay.paths[index % PATHS]
        numbers = [int.from_bytes(data[at : at + 8], "big") for at in range(0, 24, 8)]
        message = Message(
            kind, index, numbers[0] or self.now + 1, TOKEN, path.newest_sent_at, path.newest_token, *numbers[1:]
        )
        self.deliver_to_proxy(pack(message, KEY), RELAYS[index % PATHS])

    def read(self, payload: bytes) -> Message:
        message = parse(payload, KEY)
        assert message is not None
        return message

    def deliver_to_proxy(self, payload: bytes, source: End) -> bytes | None:
        """Give a payload to the proxy. Return the proxy's answer."""
        if sender_of(payload) != KEY.identifier:
            return None
        assert SIZE <= len(payload) <= MAX_SIZE
        message = parse(payload, KEY)
        if message is None:
            return None
        answer, address_changed = self.proxy.receive(message, source, self.now)
        assert not address_changed or source in RELAYS, (
            "the proxy changed a path's address to one that the relay never had"
        )
        if answer is None:
            return None
        sent = pack(answer, KEY, len(payload))
        packet_of(Ends(PROXY, source), sent)
        assert self.read(sent) == answer
        return sent

    def check_invariants(self) -> None:
        for session in (self.relay, self.proxy):
            assert all(0 <= each <= MAX_DELAY for each in session.delays(self.now))
            assert EXTRA_HOLD_TIME <= session.hold_time(self.now) <= MAX_DELAY + EXTRA_HOLD_TIME
            silence = session.next_silence(self.now)
            assert silence is None or silence > self.now
            assert (silence is not None) == any(session.alive(self.now))
            for path in session.paths:
                assert MIN_RATE <= path.estimator.rate <= MAX_RATE
                assert 0 <= path.estimator.queue <= MAX_DELAY
                assert len(path.sent_bytes_at) <= MAX_SENT_COUNTERS
        assert all(path.remote is None or path.remote in RELAYS for path in self.proxy.paths)


def tunnel_messages(data: bytes) -> None:
    """Run the steps of *data* on a tunnel. Three bytes precede each step: its kind, a value, and its number of
    bytes."""
    tunnel = Tunnel()
    for kind, value, part in _steps(data):
        if kind & 64:
            tunnel.send_arbitrary(value, part)
        else:
            tunnel.step(kind, value, part)
        tunnel.check_invariants()


def _steps(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at + 3 <= len(data):
        kind, value, size = data[at : at + 3]
        yield kind, value, data[at + 3 : at + 3 + size]
        at += 3 + size
