# SPDX-License-Identifier: GPL-2.0-or-later
"""Derives from captured segments the events that the proxy's kernel would have reported. Pure.

Sources: RFC 8684, 3.1 (MP_CAPABLE), 3.2 (MP_JOIN), 3.3.8 (MP_PRIO), 3.5 (MP_FASTCLOSE), 3.6 (MP_TCPRST).

Handshakes are checked as in a kernel: the third ACK establishes an initial subflow if it has both keys, and a join if
its HMAC is valid. Joins to a connection whose keys are not in the capture cannot be checked, and are only counted.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import Final

from mptcp_throttler.mptcp import options
from mptcp_throttler.mptcp.connection_table import TimedTable
from mptcp_throttler.mptcp.model import FourTuple, KernelEvent, KernelEventKind, Segment
from mptcp_throttler.mptcp.options import ACK, FIN, RST, SYN

HANDSHAKE_SECONDS: Final = 10.0  # maximum time from the SYN to the third ACK


class _Subflow:
    """A subflow whose SYN was captured."""

    def __init__(self, syn: Segment, join: options.MpJoinSyn | None) -> None:
        self.client_next = _next_sequence(syn.sequence)
        self.proxy_next: int | None = None
        self.join = join
        self.token = 0 if join is None else join.token
        self.proxy_key = b""
        self.syn_ack: options.MpJoinSynAck | None = None
        self.backup = join is not None and join.backup
        self.fin_senders: set[bool] = set()  # the sides that sent a FIN; True is the client


class SimulatedKernel:
    """Derives kernel events from captured segments, which must be in chronological order."""

    def __init__(self) -> None:
        self.unproven_joins = 0  # joins whose HMAC could not be checked
        self._handshakes: TimedTable[FourTuple, _Subflow] = TimedTable()
        self._established: dict[FourTuple, _Subflow] = {}
        self._keys: dict[int, tuple[bytes, bytes]] = {}  # the client's and the proxy's key, by token

    def forget(self, token: int) -> None:
        """Drop the keys of an ended connection."""
        self._keys.pop(token, None)

    def process(self, segment: Segment, four_tuple: FourTuple, from_client: bool) -> list[KernelEvent]:
        """Return the kernel events that follow from *segment*."""
        if segment.outgoing is from_client:
            return []
        flags = segment.flags
        if flags & SYN and not flags & (RST | FIN):
            if from_client and not flags & ACK:
                self._process_syn(segment, four_tuple)
            elif flags & ACK and not from_client:
                self._process_syn_ack(segment, four_tuple)
            return []
        events = self._process_third_ack(segment, four_tuple) if from_client else []
        subflow = self._established.get(four_tuple)
        if events or subflow is None:
            return events
        fastclose, priority = segment.option(options.MpFastclose), segment.option(options.MpPrio)
        if priority is not None and from_client:
            subflow.backup = priority.backup
            events.append(self._event(segment, KernelEventKind.SUBFLOW_PRIORITY, four_tuple, subflow))
        keys = self._keys.get(subflow.token)
        if fastclose is not None and keys is not None and compare_digest(keys[from_client], fastclose.receiver_key):
            for closed in [key for key, each in self._established.items() if each.token == subflow.token]:
                del self._established[closed]
            detail = f"MP_FASTCLOSE from the {'client' if from_client else 'proxy'}"
            return [KernelEvent(segment.time, KernelEventKind.CLOSED, subflow.token, None, detail=detail)]
        subflow.fin_senders |= {from_client} if flags & FIN else set()
        if flags & RST or len(subflow.fin_senders) == 2:
            detail = f"{'RST' if flags & RST else 'FIN'} from the {'client' if from_client else 'proxy'}"
            reset = segment.option(options.MpTcprst)
            detail += "" if reset is None else f", MP_TCPRST reason {reset.reason}"
            del self._established[four_tuple]
            events.append(self._event(segment, KernelEventKind.SUBFLOW_CLOSED, four_tuple, subflow, detail))
        return events

    def _process_syn(self, segment: Segment, four_tuple: FourTuple) -> None:
        join, capable = segment.option(options.MpJoinSyn), segment.option(options.MpCapable)
        if join is not None or (capable is not None and capable.version > 0):
            self._handshakes.drop_until(segment.time - HANDSHAKE_SECONDS)
            previous = self._handshakes.get(four_tuple)
            if previous is None or previous.client_next != _next_sequence(segment.sequence):
                self._handshakes.put(four_tuple, _Subflow(segment, join), segment.time)

    def _process_syn_ack(self, segment: Segment, four_tuple: FourTuple) -> None:
        subflow = self._handshakes.get(four_tuple)
        if subflow is None or segment.acknowledgment != subflow.client_next:
            return
        capable = segment.option(options.MpCapable)
        if subflow.join is not None:
            subflow.syn_ack = segment.option(options.MpJoinSynAck)
        elif capable is not None and capable.version == 1 and capable.sender_key:
            subflow.proxy_key, subflow.token = capable.sender_key, options.token_of_key(capable.sender_key)
        subflow.proxy_next = _next_sequence(segment.sequence)

    def _process_third_ack(self, segment: Segment, four_tuple: FourTuple) -> list[KernelEvent]:
        subflow = self._handshakes.get(four_tuple)
        if subflow is None or not subflow.token or segment.acknowledgment != subflow.proxy_next:
            return []
        capable, join_ack = segment.option(options.MpCapable), segment.option(options.MpJoinAck)
        if subflow.join is None:
            if capable is None or capable.sender_key is None or capable.receiver_key != subflow.proxy_key:
                return []
            self._keys[subflow.token] = capable.sender_key, subflow.proxy_key
            kind = KernelEventKind.CREATED
        else:
            if join_ack is None or subflow.syn_ack is None:
                return []
            if subflow.token not in self._keys:
                self.unproven_joins += 1
                self._handshakes.pop(four_tuple)
                return []
            expected = options.join_ack_hmac(*self._keys[subflow.token], subflow.join.nonce, subflow.syn_ack.nonce)
            if not compare_digest(expected, join_ack.hmac):
                return []
            kind = KernelEventKind.SUBFLOW_ESTABLISHED
        self._handshakes.pop(four_tuple)
        events = []
        if (previous := self._established.get(four_tuple)) is not None:
            detail = "a new subflow has the same addresses and ports"
            events.append(self._event(segment, KernelEventKind.SUBFLOW_CLOSED, four_tuple, previous, detail))
        self._established[four_tuple] = subflow
        return [*events, self._event(segment, kind, four_tuple, subflow)]

    def _event(
        self, segment: Segment, kind: KernelEventKind, four_tuple: FourTuple, subflow: _Subflow, detail: str = ""
    ) -> KernelEvent:
        local_id = None if subflow.syn_ack is None else subflow.syn_ack.address_id
        remote_id = None if subflow.join is None else subflow.join.address_id
        return KernelEvent(segment.time, kind, subflow.token, four_tuple, local_id, remote_id, subflow.backup, detail)


def _next_sequence(sequence: int) -> int:
    return (sequence + 1) & 0xFFFFFFFF
