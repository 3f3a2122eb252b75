# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the tracker has exactly the subflows that the kernel reported, independent of the captured packets.

A model of the kernel opens, joins, changes and closes subflows. Its packets may or may not be captured, and its events
may be read late. Among them are forged segments of every subtype on any subflow, with the client's or the proxy's
address.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mptcp_dialogue import ACK, FIN, PORT, RST, SYN, ClientSubflow, Host
from mptcp_invariants import Subscriber, check_tables

from mptcp_throttler.mptcp.limits import TrackerLimits
from mptcp_throttler.mptcp.model import (
    Event,
    FourTuple,
    KernelEvent,
    KernelEventKind,
    Segment,
    Subflow,
)
from mptcp_throttler.mptcp.options import (
    AddAddr,
    Dss,
    Malformed,
    MpCapable,
    MpFail,
    MpFastclose,
    MpJoinAck,
    MpJoinSyn,
    MpJoinSynAck,
    MpPrio,
    MptcpOption,
    MpTcprst,
    RemoveAddr,
    UnknownSubtype,
)
from mptcp_throttler.mptcp.tracker import Tracker

LIMITS = TrackerLimits(
    max_connections=4, max_subflows_per_connection=3, max_remembered=6, max_refused=3, handshake_timeout=8.0
)


@dataclass
class OpenSubflow:
    """A subflow that the kernel has."""

    subflow: ClientSubflow
    backup: bool

    def as_subflow(self) -> Subflow:
        subflow = self.subflow
        ids = subflow.local_id, subflow.remote_id
        return Subflow(subflow.four_tuple, subflow.is_initial, *ids, self.backup, subflow.interface, 0.0)


def interface_of_route(four_tuple: FourTuple) -> str:
    """Return the interface of the proxy's route. The proxy uses one address on both interfaces."""
    return f"eth{four_tuple.remote_port % 2}"


SubflowsByToken = dict[int, dict[FourTuple, OpenSubflow]]
"""Subflows by token, oldest first."""

NUMBERS = st.integers(0, 2)
PORTS = st.sampled_from((50000, 50001, 50002))
ADDRESS_IDS = st.sampled_from((0, 3, 9))


@st.composite
def forged_options(draw: st.DrawFn, subflow: ClientSubflow) -> tuple[MptcpOption, ...]:
    """Draw options of every subtype, with values that are on the wire or known to the client."""
    host = subflow.host
    real_options = [option for segment in subflow.handshake() for option in segment.options]
    key = draw(st.sampled_from((host.proxy_key, host.client_key, bytes(8))))
    backup, number = draw(st.booleans()), draw(ADDRESS_IDS)
    forged = (
        MpCapable(draw(st.sampled_from((0, 1, 2))), 1, key, draw(st.sampled_from((None, host.proxy_key)))),
        MpCapable(1, 1, bytes(8), host.proxy_key),
        MpJoinSyn(backup, number, draw(st.sampled_from((host.token, 7))), subflow.nonce_client),
        MpJoinSynAck(backup, number, bytes(8), bytes(4)),
        MpJoinAck(bytes(20)),
        Dss(True, 1, 1, 4, 1, 1),
        AddAddr(False, number, bytes(4), None),
        RemoveAddr((0, number, subflow.remote_id)),
        MpPrio(backup),
        MpFail(1),
        MpFastclose(key),
        MpTcprst(0, 1),
        UnknownSubtype(12, b""),
        Malformed(1, "short", b""),
    )
    return tuple(draw(st.lists(st.sampled_from((*real_options, *forged)), max_size=2)))


class SegmentsAndEvents(RuleBasedStateMachine):
    """Each rule is one action of the kernel, of the capture, or of an attacker who forges segments."""

    version = 4
    limits = LIMITS

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0
        self.hosts = [Host(name) for name in ("one", "two", "three")]
        self.generation = 0
        self.in_kernel: SubflowsByToken = {}
        self.reported: SubflowsByToken = {}
        self.packets: deque[Segment] = deque()
        self.events: deque[KernelEvent] = deque()
        self.start()

    def start(self) -> None:
        self.tracker, self.subscriber = Tracker([PORT], self.limits), Subscriber()
        self.tracker.interface_of = interface_of_route
        self.reported = {}
        self.packets.clear()
        self.events.clear()
        self.dump(0)

    # Subflows and events

    def subflow_of(self, number: int, port: int | None) -> ClientSubflow:
        host = self.hosts[number]
        host.time = self.time
        proxy = "192.0.2.1" if self.version == 4 else "2001:db8::1"
        if port is None:
            address = "198.51.100.1" if self.version == 4 else "2001:db8:1::1"
            subflow = host.initial(address, 40000 + number, proxy=proxy)
        else:
            address = "203.0.113.1" if self.version == 4 else "2001:db8:2::1"
            subflow = host.join(address, port, proxy=proxy)
        subflow.interface = interface_of_route(subflow.four_tuple)
        for _ in range(self.generation):
            subflow = subflow.later_attempt()
        return subflow

    def receive(self, events: Iterable[Event]) -> None:
        self.subscriber.receive(events)

    def apply_segment(self, segment: Segment) -> None:
        self.receive(self.tracker.apply_segment(segment))

    # The kernel, whose subflows the tracker must have

    def send(self, *segments: Segment) -> None:
        for segment in segments:
            outgoing = segment.source_port == PORT
            self.packets.append(replace(segment, outgoing=outgoing))

    def report(self, event: KernelEvent) -> None:
        self.events.append(event)

    @rule(number=NUMBERS)
    def opens(self, number: int) -> None:
        subflow = self.subflow_of(number, None)
        if subflow.host.token in self.in_kernel or len(self.in_kernel) == 2:
            return
        self.send(*subflow.handshake())
        self.in_kernel[subflow.host.token] = {subflow.four_tuple: OpenSubflow(subflow, False)}
        self.report(subflow.kernel_event(KernelEventKind.CREATED))
        self.report(subflow.kernel_event(KernelEventKind.ESTABLISHED))

    @rule(number=NUMBERS, port=PORTS, backup=st.booleans())
    def joins(self, number: int, port: int, backup: bool) -> None:
        subflow = self.subflow_of(number, port)
        subflow.backup = backup
        subflows = self.in_kernel.get(subflow.host.token)
        if (
            subflows is None
            or any(subflow.four_tuple in each for each in self.in_kernel.values())
            or len(subflows) == 3
        ):
            return
        self.send(*subflow.handshake())
        subflows[subflow.four_tuple] = OpenSubflow(subflow, backup)
        self.report(subflow.kernel_event(KernelEventKind.SUBFLOW_ESTABLISHED))

    @rule(number=NUMBERS, port=PORTS | st.none(), backup=st.booleans())
    def changes_priority(self, number: int, port: int | None, backup: bool) -> None:
        subflow = self.subflow_of(number, port)
        open_subflow = self.in_kernel.get(subflow.host.token, {}).get(subflow.four_tuple)
        if open_subflow is not None:
            self.send(subflow.from_client(ACK, MpPrio(backup)))
            self.in_kernel[subflow.host.token][subflow.four_tuple] = OpenSubflow(open_subflow.subflow, backup)
            self.report(subflow.kernel_event(KernelEventKind.SUBFLOW_PRIORITY, backup=backup))

    @rule(number=NUMBERS, port=PORTS | st.none(), reset=st.booleans())
    def ends(self, number: int, port: int | None, reset: bool) -> None:
        subflow = self.subflow_of(number, port)
        subflows = self.in_kernel.get(subflow.host.token, {})
        if subflows.pop(subflow.four_tuple, None) is None:
            return
        self.send(*([subflow.rst()] if reset else [subflow.fin(), subflow.proxy_fin()]))
        if subflows:
            self.report(subflow.kernel_event(KernelEventKind.SUBFLOW_CLOSED))
        else:
            del self.in_kernel[subflow.host.token]
            self.report(subflow.host.close_event())

    @rule(number=NUMBERS, port=PORTS | st.none())
    def sends_a_handshake_that_is_not_accepted(self, number: int, port: int | None) -> None:
        """Send a handshake that the kernel does not accept, although its third ACK may be captured."""
        subflow = self.subflow_of(number, port)
        if any(subflow.four_tuple in each for each in self.in_kernel.values()):
            return
        self.send(*subflow.handshake())

    @rule()
    def clients_choose_new_sequence_numbers(self) -> None:
        self.generation += 1

    # The observers: capture, events and dumps

    @rule(count=st.integers(1, 6), captured=st.booleans())
    def packets_are_read(self, count: int, captured: bool) -> None:
        for _ in range(min(count, len(self.packets))):
            segment = self.packets.popleft()
            if captured:
                self.apply_segment(segment)

    @rule(count=st.integers(1, 3))
    def events_are_read(self, count: int) -> None:
        for _ in range(min(count, len(self.events))):
            self.time += 0.001
            event = replace(self.events.popleft(), time=self.time)
            self.receive(self.tracker.apply_event(event))
            if event.kind is KernelEventKind.CLOSED:
                self.reported.pop(event.token, None)
                continue
            assert event.four_tuple is not None
            subflows = self.reported.setdefault(event.token, {})
            for others in self.reported.values():
                if others is not subflows:
                    others.pop(event.four_tuple, None)
            if event.kind is KernelEventKind.SUBFLOW_CLOSED:
                subflows.pop(event.four_tuple, None)
            elif event.kind is KernelEventKind.SUBFLOW_PRIORITY:
                subflows[event.four_tuple] = OpenSubflow(subflows[event.four_tuple].subflow, event.backup)
            else:
                subflow = next(self._possible_subflows(event.token, event.four_tuple))
                earlier = subflows.get(event.four_tuple)
                subflows[event.four_tuple] = OpenSubflow(subflow, event.backup if earlier is None else earlier.backup)

    def _possible_subflows(self, token: int, four_tuple: FourTuple) -> Iterator[ClientSubflow]:
        number = next(index for index, host in enumerate(self.hosts) if host.token == token)
        return (
            subflow
            for port in (None, 50000, 50001, 50002)
            if (subflow := self.subflow_of(number, port)).four_tuple == four_tuple
        )

    @rule(seconds=st.sampled_from((2.0, 12.0)))
    def dump(self, seconds: float) -> None:
        """Read all packets and events, advance the time, and resync with a dump."""
        self.packets_are_read(100, True)
        self.events_are_read(100)
        self.time += seconds
        in_kernel = [each.subflow.kernel_subflow(backup=each.backup) for each in self._all_subflows()]
        resync = self.tracker.begin_resync(self.time)
        self.receive(resync.add(in_kernel))
        for events in resync.finish():
            self.receive(events)
        self.reported = {token: dict(subflows) for token, subflows in self.in_kernel.items()}

    def _all_subflows(self) -> list[OpenSubflow]:
        return [each for subflows in self.in_kernel.values() for each in subflows.values()]

    @precondition(lambda self: len(self.tracker.table.lookups) > 0)
    @rule()
    def lookups_are_answered(self) -> None:
        self.events_are_read(100)
        self.time += 0.5
        requested = self.tracker.lookups.pop_due(self.time)
        in_kernel = {each.subflow.four_tuple: each for each in self._all_subflows()}
        sockets = {
            each: in_kernel[each].subflow.kernel_subflow(backup=in_kernel[each].backup)
            for each in requested
            if each in in_kernel
        }
        self.receive(self.tracker.apply_lookup(requested, sockets, self.time))
        for four_tuple in requested:
            for subflows in self.reported.values():
                subflows.pop(four_tuple, None)
            if four_tuple in sockets:
                self.reported.setdefault(sockets[four_tuple].token, {})[four_tuple] = in_kernel[four_tuple]

    @rule(seconds=st.sampled_from((0.2, 2.0, 9.0, 20.0)))
    def time_passes(self, seconds: float) -> None:
        self.time += seconds
        self.receive(self.tracker.expire(self.time))

    @rule()
    def restart(self) -> None:
        self.start()

    # The attacker

    @rule(
        data=st.data(),
        number=NUMBERS,
        port=PORTS | st.none(),
        flags=st.sampled_from((SYN, SYN | ACK, ACK, FIN | ACK, RST, RST | ACK, SYN | FIN, 0)),
        from_proxy=st.booleans(),
        guessed=st.booleans(),
        on_other_interface=st.booleans(),
    )
    def forge(
        self,
        data: st.DataObject,
        number: int,
        port: int | None,
        flags: int,
        from_proxy: bool,
        guessed: bool,
        on_other_interface: bool,
    ) -> None:
        subflow = self.subflow_of(number, port)
        options = data.draw(forged_options(subflow))
        make = subflow.from_proxy if from_proxy else subflow.from_client
        segment = make(flags, *options, sequence=0 if guessed and flags & SYN else 1 if guessed else 12_345)
        self.time += 0.0005
        segment = replace(
            segment, time=self.time, outgoing=False, interface="eth1" if on_other_interface else subflow.interface
        )
        self.apply_segment(segment)

    @rule(
        number=NUMBERS,
        port=PORTS | st.none(),
        index=st.integers(0, 8),
        is_later_attempt=st.booleans(),
        with_syn=st.booleans(),
    )
    def replay(self, number: int, port: int | None, index: int, is_later_attempt: bool, with_syn: bool) -> None:
        """Deliver, on another interface, a segment that a real stack could send, in this attempt or in a later one."""
        subflow = self.subflow_of(number, port)
        subflow = subflow.later_attempt() if is_later_attempt else subflow
        host = subflow.host
        fastcloses = (
            subflow.from_client(ACK, MpFastclose(host.proxy_key)),
            subflow.from_proxy(RST, MpFastclose(host.client_key)),
        )
        signals = subflow.rst(), subflow.proxy_rst(), subflow.fin(), subflow.from_client(ACK, MpPrio(True))
        selected = [*subflow.handshake(), *signals, *fastcloses][index]
        for segment in (subflow.syn(), selected) if with_syn else (selected,):
            self.time += 0.0005
            self.apply_segment(replace(segment, time=self.time, outgoing=False, interface="elsewhere"))

    @precondition(lambda self: self.packets)
    @rule(index=st.integers(0, 5))
    def copy_of_a_real_packet_arrives_early(self, index: int) -> None:
        """Deliver a copy of a real packet on another interface before the packet itself is read."""
        self.time += 0.0005
        segment = self.packets[min(index, len(self.packets) - 1)]
        self.apply_segment(replace(segment, time=self.time, outgoing=False, interface="elsewhere"))

    # Invariants

    @invariant()
    def tracker_has_exactly_the_reported_subflows(self) -> None:
        reported = {
            four_tuple: open_subflow
            for subflows in self.reported.values()
            for four_tuple, open_subflow in subflows.items()
        }
        tracked = {each.four_tuple: each for shown in self.tracker.connections.values() for each in shown.subflows}
        assert {each: replace(open_subflow.as_subflow(), since=0.0) for each, open_subflow in reported.items()} == {
            each: replace(subflow, since=0.0) for each, subflow in tracked.items()
        }

    @invariant()
    def tables_are_bounded_and_agree(self) -> None:
        check_tables(self.tracker, self.limits)
        self.subscriber.assert_agrees_with(self.tracker)


class SegmentsAndEventsIPv6(SegmentsAndEvents):
    version = 6


SETTINGS = settings(max_examples=examples(80), stateful_step_count=50, deadline=None)
for machine in (SegmentsAndEvents, SegmentsAndEventsIPv6):
    machine.TestCase.settings = SETTINGS
TestSegmentsAndEvents, TestSegmentsAndEventsIPv6 = SegmentsAndEvents.TestCase, SegmentsAndEventsIPv6.TestCase
