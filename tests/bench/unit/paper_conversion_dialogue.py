# SPDX-License-Identifier: GPL-2.0-or-later
"""Builds connections as both sides of a proxy's host would have captured them, segment by segment.

Times are nanoseconds. A :class:`Talk` knows its sequence numbers; MPTCP options are made from keys as in RFC 8684.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mptcp_bench.wire.packets import ACK, SYN, Packet
from mptcp_throttler.mptcp.options import (
    Dss,
    MpCapable,
    MpJoinAck,
    MpJoinSyn,
    MpJoinSynAck,
    MptcpOption,
    initial_data_sequence,
    token_of_key,
)

CLIENT, CLIENT_WIFI, PROXY, ORIGIN = (bytes([10, 77, net, 2]) for net in (1, 2, 8, 9))
PROXY_PORT, ORIGIN_PORT = 3128, 80
CLIENT_KEY, PROXY_KEY = b"client's", b"a proxy'"
_32 = (1 << 32) - 1
End = tuple[bytes, int]


def dss(key: bytes, offset: int, subflow: int, length: int, *, octets: int = 8) -> Dss:
    """Return a DSS mapping of *length* bytes at *offset* of the data stream whose sender has *key*."""
    sequence = initial_data_sequence(key) + 1 + offset
    return Dss(False, None, sequence & ((1 << 8 * octets) - 1), octets, subflow, length)


@dataclass
class Talk:
    """One TCP connection. :attr:`packets` contains the captured segments."""

    client: End
    server: End
    client_isn: int = 0xFFFF_FF00
    """Initial sequence number close to the maximum, so that most dialogues wrap around."""
    server_isn: int = 7
    packets: list[Packet] = field(default_factory=list)

    def up(self, time: int, number: int, payload: bytes = b"", *options: MptcpOption, flags: int = ACK) -> None:
        """Let the client send *payload*, whose first byte has the sequence number *number*, counted from the SYN."""
        self._add(time, self.client, self.server, self.client_isn + number, payload, options, flags)

    def down(self, time: int, number: int, payload: bytes = b"", *options: MptcpOption, flags: int = ACK) -> None:
        self._add(time, self.server, self.client, self.server_isn + number, payload, options, flags)

    def _add(
        self,
        time: int,
        source: End,
        destination: End,
        sequence: int,
        payload: bytes,
        options: tuple[MptcpOption, ...],
        flags: int,
    ) -> None:
        self.packets.append(
            Packet(time, *source, *destination, flags, sequence & _32, 0, options, len(payload), payload[:200])
        )

    def open(self, syn: int, syn_ack: int, ack: int) -> Talk:
        """Make a handshake without MPTCP."""
        self.up(syn, 0, flags=SYN)
        self.down(syn_ack, 0, flags=SYN | ACK)
        self.up(ack, 1)
        return self

    def open_mptcp(self, syn: int, syn_ack: int, ack: int, key: bytes = PROXY_KEY) -> Talk:
        """Make a handshake with MPTCP; *key* is the server's."""
        self.up(syn, 0, b"", MpCapable(1, 1), flags=SYN)
        self.down(syn_ack, 0, b"", MpCapable(1, 1, key), flags=SYN | ACK)
        self.up(ack, 1, b"", MpCapable(1, 1, CLIENT_KEY, key))
        return self

    def join(self, syn: int, syn_ack: int, ack: int, key: bytes = PROXY_KEY) -> Talk:
        """Let a subflow join the connection whose server has *key*."""
        self.up(syn, 0, b"", MpJoinSyn(False, 2, token_of_key(key), bytes(4)), flags=SYN)
        self.down(syn_ack, 0, b"", MpJoinSynAck(False, 1, bytes(8), bytes(4)), flags=SYN | ACK)
        self.up(ack, 1, b"", MpJoinAck(bytes(20)))
        return self


def client_talk(port: int = 40_000, address: bytes = CLIENT) -> Talk:
    return Talk((address, port), (PROXY, PROXY_PORT))


def origin_talk(port: int = 50_000) -> Talk:
    return Talk((PROXY, port), (ORIGIN, ORIGIN_PORT), client_isn=99, server_isn=_32 - 3)
