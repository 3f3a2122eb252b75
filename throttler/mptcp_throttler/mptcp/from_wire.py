"""From captured segments to signals: which subflow a segment belongs to, and what it signals.

Sources: RFC 8684, 3.1 (MP_CAPABLE, version negotiation), 3.2 (MP_JOIN), 3.3.8 (MP_PRIO), 3.4.2 (REMOVE_ADDR), 3.5
(MP_FASTCLOSE); RFC 9293, 3.10.

What counts as evidence, and why:

- A SYN shows only what its sender wants. It never changes what is there: the proxy's SYN/ACK to it does, but not a
  subflow that the kernel has, which answers none.
- A SYN/ACK comes from the proxy. It must acknowledge the SYN it answers; so must the third ACK, the SYN/ACK.
- A third ACK counts by its keys or its HMAC only. One that cannot be checked waits for the missing part, for the
  kernel's event, or for its timeout. One with a wrong HMAC is counted and changes nothing: the proxy answers it with a
  RST if it takes it at all.
- A segment cannot be checked as the kernel checks it: handshakes do not show the sequence window, offloading leaves
  checksums unfinished, and the kernel takes less than the wire shows. What the kernel has, no segment ends or changes
  therefore, be it FIN, RST, MP_FASTCLOSE or MP_PRIO: the kernel's event tells, or the kernel is asked
  (:meth:`~.connection_table.ConnectionTable.verify_with_kernel`). Otherwise a client could lift its cap by a segment
  that its peer drops.
- What packets alone have shown, packets may end: FIN, RST, and MP_FASTCLOSE that names the receiver's key.
- A handshake is ended by the proxy's segments alone. REMOVE_ADDR has no proof and ends nothing.
- A segment has one direction. One that came in with the proxy's address, or went out with a client's, is none of ours.

Packets of one connection may pass by two interfaces and be read in any order, so that each step stores what it
brings, and checks what has become checkable.
"""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
from typing import TypeVar

from mptcp_throttler.mptcp import keys
from mptcp_throttler.mptcp.connection_table import PROXY_RESET, ConnectionTable
from mptcp_throttler.mptcp.model import Event, FourTuple, Segment, SubflowState, TcpFlag, unmap
from mptcp_throttler.mptcp.options import (
    Malformed,
    MpCapable,
    MpFastclose,
    MpJoinAck,
    MpJoinSyn,
    MpJoinSynAck,
    MpPrio,
    MptcpOption,
    MpTcprst,
)
from mptcp_throttler.mptcp.records import SubflowRecord
from mptcp_throttler.mptcp.tracker_table import HALF_OPEN, LIVE, Signal

WRONG_HMAC = "third ACK with a wrong HMAC"
_SEQUENCE_MASK = 0xFFFFFFFF
_Option = TypeVar("_Option", bound=MptcpOption)
_FIN, _SYN, _RST, _ACK = (int(flag) for flag in (TcpFlag.FIN, TcpFlag.SYN, TcpFlag.RST, TcpFlag.ACK))


class WireObserver:
    """Applies segments of the connections to *listen_ports* to *table*."""

    def __init__(self, table: ConnectionTable, listen_ports: frozenset[int]) -> None:
        self._table = table
        self._ports = listen_ports
        self._readers: dict[type, Callable[[SubflowRecord, Segment, MptcpOption, bool], list[Event]]] = {
            MpCapable: self._capable_ack,
            MpJoinAck: self._join_ack,
            MpPrio: self._priority,
            MpFastclose: self._fast_close,
        }

    def segment(self, segment: Segment) -> list[Event]:
        table, counters, options = self._table, self._table.counters, segment.options
        counters.segments += 1
        for option in options:
            if type(option) is Malformed:
                counters.malformed += 1
        classified = self._classify(segment)
        if classified is None:
            counters.ignored += 1
            return []
        four_tuple, from_client = classified
        if segment.outgoing is from_client:
            counters.misdirected += 1
            return []
        subflow = table.subflows.get(four_tuple)
        flags = segment.flags
        if flags & _SYN and not flags & (_RST | _FIN):
            if flags & _ACK:
                return self._ignore() if from_client else self._proxy_syn_ack(four_tuple, subflow, segment)
            if not from_client:
                return self._ignore()
            if options and isinstance(first := options[0], MpCapable) and first.version == 0:
                counters.version_0 += 1
            return self._client_syn(four_tuple, subflow, segment)
        if subflow is None:
            return self._ignore()
        subflow.touch(segment.time)
        events: list[Event] = []
        for option in options:
            if subflow.state is SubflowState.CLOSED:
                break
            reader = self._readers.get(type(option))
            if reader is not None:
                events += reader(subflow, segment, option, from_client)
        if flags & (_RST | _FIN):
            events += self._end(subflow, segment, from_client)
        return events

    def _classify(self, segment: Segment) -> tuple[FourTuple, bool] | None:
        """Return the segment's four-tuple and whether it comes from the client; None if it is of no subflow of ours."""
        source, destination = segment.source, segment.destination
        if len(source) == 16:
            source, destination = unmap(source), unmap(destination)
        to_proxy, to_client = segment.destination_port in self._ports, segment.source_port in self._ports
        inward = FourTuple(destination, segment.destination_port, source, segment.source_port)
        if to_proxy and not to_client:
            return inward, True
        outward = FourTuple(source, segment.source_port, destination, segment.destination_port)
        if to_client and not to_proxy:
            return outward, False
        # Either the client, too, uses a port of ours, or (by a kernel event) the proxy opened the subflow itself.
        if inward in self._table.subflows:
            return inward, True
        if outward in self._table.subflows:
            return outward, False
        return (inward, True) if to_proxy and segment.flags & (_SYN | _ACK) == _SYN else None

    def _ignore(self) -> list[Event]:
        self._table.counters.ignored += 1
        return []

    def _repeated(self) -> list[Event]:
        self._table.counters.duplicates += 1
        return []

    # The client's SYN

    def _client_syn(self, four_tuple: FourTuple, subflow: SubflowRecord | None, segment: Segment) -> list[Event]:
        option = _first_option(segment, MpJoinSyn) or _first_option(segment, MpCapable)
        if isinstance(option, MpCapable) and option.version == 0:
            option = None  # Linux answers it in plain TCP
        if subflow is not None:
            if subflow.syn_seen and subflow.client_sequence == segment.sequence:
                return self._repeated()
            if not subflow.syn_seen and self._is_its_syn(subflow, segment):
                return self._late_syn(subflow, segment, option)
            subflow.successor = segment
            return []
        if option is None:
            return self._ignore()
        if isinstance(option, MpJoinSyn) and option.token not in self._table.tokens:
            if four_tuple in self._table.refused:
                return self._repeated()
            return self._table.refuse(four_tuple, option.token, segment.time, "unknown token", by_hmac=False)
        self._table.make_room_for_handshake()
        subflow = self._table.new_subflow(four_tuple, isinstance(option, MpCapable), segment.time)
        if isinstance(option, MpJoinSyn):
            connection = self._table.tokens.get(option.token)  # making room may have taken it
            if connection is None or not self._table.attach(subflow, connection):
                return self._ignore()
            self._table.refused.pop(four_tuple)
        self._read_syn(subflow, segment, option)
        return self._table.enter(subflow, Signal.SYN, segment.time)

    def _is_its_syn(self, subflow: SubflowRecord, segment: Segment) -> bool:
        """Return whether *segment* is the SYN, read late, of a subflow that the SYN/ACK or the kernel made known."""
        if subflow.client_sequence is None:
            return segment.time <= subflow.since
        return subflow.client_sequence == segment.sequence

    def _read_syn(self, subflow: SubflowRecord, segment: Segment, option: MpCapable | MpJoinSyn) -> None:
        subflow.syn_seen = True
        subflow.client_sequence = segment.sequence
        subflow.interface = subflow.interface or segment.interface
        if isinstance(option, MpCapable):
            return
        subflow.nonce_client = option.nonce
        if subflow.remote_id is None:
            subflow.remote_id = option.address_id
        if not subflow.prioritised and not subflow.known_to_kernel:
            subflow.backup = option.backup

    def _late_syn(self, subflow: SubflowRecord, segment: Segment, option: MpCapable | MpJoinSyn | None) -> list[Event]:
        if option is None or isinstance(option, MpCapable) is not subflow.initial:
            return self._ignore()
        if isinstance(option, MpJoinSyn):
            connection = self._table.tokens.get(option.token)
            if subflow.connection is None:
                if connection is not None and not self._table.attach(subflow, connection):
                    return self._ignore()
            elif subflow.connection.token != option.token:
                subflow.syn_seen, subflow.client_sequence = True, segment.sequence
                return [self._table.disagree(subflow, segment.time, f"its MP_JOIN named token {option.token:#010x}")]
        before = subflow.interface
        self._read_syn(subflow, segment, option)
        subflow.changed()
        return self._moved(subflow, before, segment.time) + self._check_join(subflow, segment.time)

    def _moved(self, subflow: SubflowRecord, before: str | None, time: float) -> list[Event]:
        """Announce the interface of a subflow that the kernel, which names none, made active before its packets."""
        if subflow.state is not SubflowState.ACTIVE or subflow.interface == before:
            return []
        return self._table.change(subflow, time, f"leaves by {subflow.interface}")

    # The proxy's SYN/ACK

    def _proxy_syn_ack(self, four_tuple: FourTuple, subflow: SubflowRecord | None, segment: Segment) -> list[Event]:
        option = _first_option(segment, MpJoinSynAck) or _first_option(segment, MpCapable)
        if isinstance(option, MpCapable) and option.version != 1:
            option = None
        events: list[Event] = []
        if subflow is not None:
            successor = subflow.successor
            answered = (segment.acknowledgment - 1) & _SEQUENCE_MASK
            if answered == subflow.client_sequence:
                if subflow.proxy_sequence is not None:
                    return self._repeated()  # a client takes the first answer, even where SYN cookies make each differ
            elif subflow.known_to_kernel and (successor is not None or segment.time > subflow.since):
                return self._table.verify_with_kernel(subflow)
            elif successor is not None and answered == successor.sequence:
                events += self._table.apply(subflow, Signal.REPLACED, segment.time)
                events += self._client_syn(four_tuple, None, successor)
                subflow = self._table.subflows.get(four_tuple)
            elif subflow.state is SubflowState.SYN and segment.outgoing:
                # The SYN that it answers was not captured, or another came after it.
                self._table.apply(subflow, Signal.REPLACED, segment.time)
                subflow = None
            # A subflow that the kernel made known may have its SYN/ACK read after that; not a later one.
            elif subflow.client_sequence is not None or segment.time > subflow.since:
                return self._ignore()
        if subflow is None:
            if option is None:
                return events or self._ignore()
            self._table.make_room_for_handshake()
            subflow = self._table.new_subflow(four_tuple, isinstance(option, MpCapable), segment.time)
        return events + self._answer(subflow, segment, option)

    def _answer(self, subflow: SubflowRecord, segment: Segment, option: MpCapable | MpJoinSynAck | None) -> list[Event]:
        events: list[Event] = []
        if isinstance(option, MpCapable) and subflow.initial and option.sender_key:
            closed = self._learn_proxy_key(subflow, option.sender_key, segment.time)
            if closed is None:
                return self._ignore()
            events += closed
        elif isinstance(option, MpJoinSynAck) and not subflow.initial:
            subflow.nonce_proxy = option.nonce
            if subflow.local_id is None:
                subflow.local_id = option.address_id
        else:
            return self._plain_answer(subflow, segment)
        subflow.client_sequence = (segment.acknowledgment - 1) & _SEQUENCE_MASK
        subflow.proxy_sequence = segment.sequence
        # Shaping is on the way out: the interface of the answer counts, not that of the SYN.
        before, subflow.interface = subflow.interface, segment.interface
        subflow.changed()
        events += self._moved(subflow, before, segment.time)
        enter_or_apply = self._table.enter if subflow.state is None else self._table.apply
        events += enter_or_apply(subflow, Signal.SYN_ACK, segment.time)
        if subflow.early_ack is not None:
            number, ack = subflow.early_ack
            subflow.early_ack = None
            if number == (segment.sequence + 1) & _SEQUENCE_MASK:
                events += self._check_capable(subflow, ack, segment.time)
        return events + self._check_join(subflow, segment.time)

    def _learn_proxy_key(self, subflow: SubflowRecord, key: bytes, time: float) -> list[Event] | None:
        """Take the proxy's key, and with it the token, from a SYN/ACK. None if it cannot be this subflow's."""
        events: list[Event] = []
        connection = subflow.connection
        token = keys.token(key)
        if connection is None:
            known = self._table.tokens.get(token)
            if known is not None:
                if known.has_live() or known.confirmed:
                    # A proxy gives no token twice at a time: a forged answer, or an old one that is read late.
                    return None
                events += self._table.close(known, time, "its token belongs to a new connection")
            connection = self._table.connection(token, time)
            self._table.attach(subflow, connection)
        elif connection.token != token:
            return None
        connection.proxy_key = key
        return events

    def _plain_answer(self, subflow: SubflowRecord, segment: Segment) -> list[Event]:
        if subflow.state not in HALF_OPEN:
            return self._ignore()
        self._table.counters.fallbacks += subflow.initial
        return self._table.apply(subflow, Signal.PLAIN_ANSWER, segment.time)

    # The third ACK

    def _capable_ack(
        self, subflow: SubflowRecord, segment: Segment, option: MptcpOption, from_client: bool
    ) -> list[Event]:
        assert isinstance(option, MpCapable)
        if not from_client or not subflow.initial or option.version != 1:
            return self._ignore()
        if subflow.state is SubflowState.SYN:
            subflow.early_ack = (segment.acknowledgment, option)
            return self._table.apply(subflow, Signal.UNCHECKED, segment.time)
        if not _acknowledges_syn_ack(subflow, segment.acknowledgment):
            return self._ignore()
        return self._check_capable(subflow, option, segment.time)

    def _check_capable(self, subflow: SubflowRecord, option: MpCapable, time: float) -> list[Event]:
        connection = subflow.connection
        if connection is None:
            return []
        had_keys = connection.client_key is not None
        if not connection.learn_keys(option):
            return self._ignore()
        events = self._table.apply(subflow, Signal.PROVEN, time)
        if had_keys:
            return events or self._repeated()
        for other in list(connection.subflows):
            if other.state is SubflowState.UNPROVEN:
                events += self._check_join(other, time)
        return events

    def _join_ack(
        self, subflow: SubflowRecord, segment: Segment, option: MptcpOption, from_client: bool
    ) -> list[Event]:
        assert isinstance(option, MpJoinAck)
        if not from_client or subflow.initial:
            return self._ignore()
        if subflow.state not in HALF_OPEN or subflow.proof == (segment.acknowledgment, option.hmac):
            return self._repeated()
        if not _acknowledges_syn_ack(subflow, segment.acknowledgment):
            return self._ignore()
        subflow.proof = (segment.acknowledgment, option.hmac)
        return self._check_join(subflow, segment.time)

    def _check_join(self, subflow: SubflowRecord, time: float) -> list[Event]:
        """Check the HMAC of a join's third ACK, if the ACK and the keys are known."""
        connection = subflow.connection
        if subflow.proof is None or subflow.state not in HALF_OPEN:
            return []
        number, hmac = subflow.proof
        if not _acknowledges_syn_ack(subflow, number):
            subflow.proof = None
            return []
        if (
            connection is None
            or connection.client_key is None
            or connection.proxy_key is None
            or subflow.nonce_client is None
            or subflow.nonce_proxy is None
        ):
            self._table.counters.unproven_joins += subflow.state is not SubflowState.UNPROVEN
            return self._table.apply(subflow, Signal.UNCHECKED, time)
        expected = keys.join_ack_hmac(
            connection.client_key, connection.proxy_key, subflow.nonce_client, subflow.nonce_proxy
        )
        if compare_digest(hmac, expected):
            self._table.refused.pop(subflow.four_tuple)
            return self._table.apply(subflow, Signal.PROVEN, time)
        if subflow.four_tuple in self._table.refused:
            return self._repeated()
        return self._table.refuse(subflow.four_tuple, connection.token, time, WRONG_HMAC, by_hmac=True)

    # After the handshake

    def _priority(
        self, subflow: SubflowRecord, segment: Segment, option: MptcpOption, from_client: bool
    ) -> list[Event]:
        return self._table.verify_with_kernel(subflow) if from_client else []

    def _fast_close(
        self, subflow: SubflowRecord, segment: Segment, option: MptcpOption, from_client: bool
    ) -> list[Event]:
        assert isinstance(option, MpFastclose)
        connection = subflow.connection
        key = None if connection is None else connection.proxy_key if from_client else connection.client_key
        if connection is None or key is None or not compare_digest(option.receiver_key, key):
            return self._ignore()
        connection.given_up = True
        if connection.confirmed or not self._table.events_arrive:
            for each in connection.subflows:
                self._table.verify_with_kernel(each, reset=True)
            return []
        return self._table.close(connection, segment.time, f"MP_FASTCLOSE from the {_side(from_client)}")

    def _end(self, subflow: SubflowRecord, segment: Segment, from_client: bool) -> list[Event]:
        live = subflow.state in LIVE
        if subflow.known_to_kernel or (live and not self._table.events_arrive):
            return self._table.verify_with_kernel(subflow, reset=bool(segment.flags & _RST))
        if subflow.state in HALF_OPEN and from_client:
            return self._ignore()
        end = self._reset if segment.flags & _RST else self._fin
        return end(subflow, segment, from_client)

    def _fin(self, subflow: SubflowRecord, segment: Segment, from_client: bool) -> list[Event]:
        if subflow.client_fin if from_client else subflow.proxy_fin:
            return self._repeated()
        if from_client:
            subflow.client_fin = True
        else:
            subflow.proxy_fin = True
        signal = Signal.FINS if subflow.client_fin and subflow.proxy_fin else Signal.FIN
        return self._table.apply(subflow, signal, segment.time, f"FIN from the {_side(from_client)}")

    def _reset(self, subflow: SubflowRecord, segment: Segment, from_client: bool) -> list[Event]:
        reason = _first_option(segment, MpTcprst)
        detail = PROXY_RESET if not from_client else "RST from the client"
        if reason is not None and subflow.state in LIVE:
            detail += f", MP_TCPRST reason {reason.reason}"
        return self._table.apply(subflow, Signal.RST, segment.time, detail)


def _side(from_client: bool) -> str:
    return "client" if from_client else "proxy"


def _first_option(segment: Segment, kind: type[_Option]) -> _Option | None:
    for option in segment.options:
        if isinstance(option, kind):
            return option
    return None


def _acknowledges_syn_ack(subflow: SubflowRecord, acknowledgment: int) -> bool:
    """Return whether a third ACK may be this handshake's: it may while the SYN/ACK is missing."""
    return subflow.proxy_sequence is None or acknowledgment == (subflow.proxy_sequence + 1) & _SEQUENCE_MASK
