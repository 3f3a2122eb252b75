# SPDX-License-Identifier: GPL-2.0-or-later
"""Derives from captured segments the events that the proxy's kernel would have reported. Pure.

Sources: RFC 8684, 3.1 (MP_CAPABLE), 3.2 (MP_JOIN), 3.3.8 (MP_PRIO), 3.5 (MP_FASTCLOSE), 3.6 (MP_TCPRST).

Handshakes are checked as in a kernel: the third ACK establishes an initial subflow if it has both keys, and a join if
it has the right HMAC. Joins to a connection whose keys are not in the capture cannot be checked, and are only counted.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import Final

from mptcp_throttler.mptcp import options
from mptcp_throttler.mptcp.connection_table import TimedTable
from mptcp_throttler.mptcp.model import FourTuple, KernelEvent, KernelEventKind, Segment
from mptcp_throttler.mptcp.options import ACK, FIN, RST, SYN

HANDSHAKE_SECONDS: Final = 10.0


class _Handshake:
    """A subflow whose SYN was captured."""

    def __init__(self, syn: Segment, join: options.MpJoinSyn | None) -> None:
        self.client_next = _after(syn.sequence)
        self.proxy_next: int | None = None
        self.join = join
        self.token = 0 if join is None else join.token
        self.proxy_key = b""
        self.answer: options.MpJoinSynAck | None = None
        self.backup = join is not None and join.backup
        self.ended: set[bool] = set()  # the sides that sent a FIN; True is the client


class Endpoint:
    """Derives kernel events from captured segments, which must come in the order of time."""

    def __init__(self) -> None:
        self.unproven_joins = 0
        self._handshakes: TimedTable[FourTuple, _Handshake] = TimedTable()
        self._established: dict[FourTuple, _Handshake] = {}
        self._keys: dict[int, tuple[bytes, bytes]] = {}  # the client's and the proxy's key, by token

    def forget(self, token: int) -> None:
        """Drop the keys of an ended connection."""
        self._keys.pop(token, None)

    def take(self, segment: Segment, four_tuple: FourTuple, from_client: bool) -> list[KernelEvent]:
        """Return the kernel events that follow from *segment*."""
        if segment.outgoing is from_client:
            return []
        flags = segment.flags
        if flags & SYN and not flags & (RST | FIN):
            if from_client and not flags & ACK:
                self._syn(segment, four_tuple)
            elif flags & ACK and not from_client:
                self._syn_ack(segment, four_tuple)
            return []
        events = self._third_ack(segment, four_tuple) if from_client else []
        subflow = self._established.get(four_tuple)
        if events or subflow is None:
            return events
        fastclose, priority = segment.option(options.MpFastclose), segment.option(options.MpPrio)
        if priority is not None and from_client:
            subflow.backup = priority.backup
            events.append(self._event(segment, KernelEventKind.SUBFLOW_PRIORITY, four_tuple, subflow))
        known = self._keys.get(subflow.token)
        if fastclose is not None and known is not None and compare_digest(known[from_client], fastclose.receiver_key):
            for each in [ends for ends, other in self._established.items() if other.token == subflow.token]:
                del self._established[each]
            detail = f"MP_FASTCLOSE from the {'client' if from_client else 'proxy'}"
            return [KernelEvent(segment.time, KernelEventKind.CLOSED, subflow.token, None, detail=detail)]
        subflow.ended |= {from_client} if flags & FIN else set()
        if flags & RST or len(subflow.ended) == 2:
            detail = f"{'RST' if flags & RST else 'FIN'} from the {'client' if from_client else 'proxy'}"
            reset = segment.option(options.MpTcprst)
            detail += "" if reset is None else f", MP_TCPRST reason {reset.reason}"
            del self._established[four_tuple]
            events.append(self._event(segment, KernelEventKind.SUBFLOW_CLOSED, four_tuple, subflow, detail))
        return events

    def _syn(self, segment: Segment, four_tuple: FourTuple) -> None:
        join, capable = segment.option(options.MpJoinSyn), segment.option(options.MpCapable)
        if join is not None or (capable is not None and capable.version > 0):
            self._handshakes.drop_until(segment.time - HANDSHAKE_SECONDS)
            before = self._handshakes.get(four_tuple)
            if before is None or before.client_next != _after(segment.sequence):
                self._handshakes.put(four_tuple, _Handshake(segment, join), segment.time)

    def _syn_ack(self, segment: Segment, four_tuple: FourTuple) -> None:
        subflow = self._handshakes.get(four_tuple)
        if subflow is None or segment.acknowledgment != subflow.client_next:
            return
        capable = segment.option(options.MpCapable)
        if subflow.join is not None:
            subflow.answer = segment.option(options.MpJoinSynAck)
        elif capable is not None and capable.version == 1 and capable.sender_key:
            subflow.proxy_key, subflow.token = capable.sender_key, options.token_of_key(capable.sender_key)
        subflow.proxy_next = _after(segment.sequence)

    def _third_ack(self, segment: Segment, four_tuple: FourTuple) -> list[KernelEvent]:
        subflow = self._handshakes.get(four_tuple)
        if subflow is None or not subflow.token or segment.acknowledgment != subflow.proxy_next:
            return []
        capable, proof = segment.option(options.MpCapable), segment.option(options.MpJoinAck)
        if subflow.join is None:
            if capable is None or capable.sender_key is None or capable.receiver_key != subflow.proxy_key:
                return []
            self._keys[subflow.token] = capable.sender_key, subflow.proxy_key
            kind = KernelEventKind.CREATED
        else:
            if proof is None or subflow.answer is None:
                return []
            if subflow.token not in self._keys:
                self.unproven_joins += 1
                self._handshakes.pop(four_tuple)
                return []
            right = options.join_ack_hmac(*self._keys[subflow.token], subflow.join.nonce, subflow.answer.nonce)
            if not compare_digest(right, proof.hmac):
                return []
            kind = KernelEventKind.SUBFLOW_ESTABLISHED
        self._handshakes.pop(four_tuple)
        events = []
        if (before := self._established.get(four_tuple)) is not None:
            detail = "another took its addresses and ports"
            events.append(self._event(segment, KernelEventKind.SUBFLOW_CLOSED, four_tuple, before, detail))
        self._established[four_tuple] = subflow
        return [*events, self._event(segment, kind, four_tuple, subflow)]

    def _event(
        self, segment: Segment, kind: KernelEventKind, four_tuple: FourTuple, subflow: _Handshake, detail: str = ""
    ) -> KernelEvent:
        local_id = None if subflow.answer is None else subflow.answer.address_id
        remote_id = None if subflow.join is None else subflow.join.address_id
        return KernelEvent(segment.time, kind, subflow.token, four_tuple, local_id, remote_id, subflow.backup, detail)


def _after(sequence: int) -> int:
    return (sequence + 1) & 0xFFFFFFFF
