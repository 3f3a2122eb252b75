"""The tracker against a simple model, under any sequence of what clients, proxy, forgers and kernel may do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from mptcp_dialogue import PORT, Host, Path
from mptcp_invariants import Subscriber, check_tables

from mptcp_throttler.mptcp.limits import TrackerLimits
from mptcp_throttler.mptcp.model import Event, FourTuple, KernelEventKind, Segment, SubflowState
from mptcp_throttler.mptcp.tracker import Tracker

LIMITS = TrackerLimits(
    max_connections=2, max_subflows_per_connection=3, max_half_open=5, max_refused=2, half_open_timeout=8.0
)
NAMES = ("one", "two", "three")
HOSTS = st.sampled_from(range(len(NAMES)))
PORTS = st.sampled_from((50000, 50001, 50002))


class Conversation(RuleBasedStateMachine):
    """Each rule is one thing that can happen. What proves a subflow is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = Tracker([PORT], LIMITS)
        self.subscriber = Subscriber()
        self.hosts = [Host(name) for name in NAMES]
        self.time = 1000.0
        self.proven: set[FourTuple] = set()
        self.generation = 0

    def path(self, host: int, port: int | None) -> Path:
        mine = self.hosts[host]
        mine.time = self.time
        # All hosts join from the same addresses and ports: reuse of four-tuples is the rule here.
        path = mine.initial() if port is None else mine.join(port=port)
        for _ in range(self.generation):
            path = path.again()
        return path

    def feed(self, segment: Segment) -> None:
        self.receive(self.tracker.segment(segment))

    def receive(self, events: Iterable[Event]) -> None:
        self.time += 0.01
        self.subscriber.receive(events)

    @rule(host=HOSTS, port=PORTS | st.none())
    def syn(self, host: int, port: int | None) -> None:
        self.feed(self.path(host, port).syn())

    @rule(host=HOSTS, port=PORTS | st.none())
    def syn_ack(self, host: int, port: int | None) -> None:
        self.feed(self.path(host, port).syn_ack())

    @rule(host=HOSTS, port=PORTS | st.none())
    def ack(self, host: int, port: int | None) -> None:
        path = self.path(host, port)
        self.proven.add(path.four_tuple)
        self.feed(path.ack())

    @rule(host=HOSTS, port=PORTS | st.none())
    def forged_ack(self, host: int, port: int | None) -> None:
        self.feed(self.path(host, port).ack(forged=True))

    @rule(host=HOSTS, port=PORTS | st.none())
    def handshake(self, host: int, port: int | None) -> None:
        self.syn(host, port)
        self.syn_ack(host, port)
        self.ack(host, port)

    @rule(host=HOSTS, port=PORTS)
    def forged_join(self, host: int, port: int) -> None:
        self.syn(host, port)
        self.syn_ack(host, port)
        self.forged_ack(host, port)

    @rule(host=HOSTS, port=PORTS | st.none())
    def plain_answer(self, host: int, port: int | None) -> None:
        self.feed(self.path(host, port).plain_syn_ack())

    @rule(host=HOSTS, port=PORTS | st.none(), proxy=st.booleans())
    def fin(self, host: int, port: int | None, proxy: bool) -> None:
        path = self.path(host, port)
        self.feed(path.proxy_fin() if proxy else path.fin())

    @rule(host=HOSTS, port=PORTS | st.none(), proxy=st.booleans())
    def reset(self, host: int, port: int | None, proxy: bool) -> None:
        path = self.path(host, port)
        self.feed(path.proxy_rst() if proxy else path.rst())

    @rule(host=HOSTS, port=PORTS | st.none(), kind=st.sampled_from(KernelEventKind))
    def kernel(self, host: int, port: int | None, kind: KernelEventKind) -> None:
        path = self.path(host, port)
        if kind in {KernelEventKind.CREATED, KernelEventKind.ESTABLISHED, KernelEventKind.SUBFLOW_ESTABLISHED}:
            self.proven.add(path.four_tuple)
        self.receive(self.tracker.kernel_event(path.kernel(kind)))

    @rule(listed=st.lists(st.tuples(HOSTS, PORTS | st.none()), max_size=4), age=st.floats(0, 3))
    def dump(self, listed: list[tuple[int, int | None]], age: float) -> None:
        paths = [self.path(host, port) for host, port in listed]
        self.proven.update(path.four_tuple for path in paths)
        self.receive(self.tracker.resync([path.dumped() for path in paths], self.time - age))

    @rule(seconds=st.sampled_from((0.5, 5.0, 20.0, 200.0)))
    def wait(self, seconds: float) -> None:
        self.time += seconds
        self.receive(self.tracker.expire(self.time))

    @rule()
    def reboot(self) -> None:
        """All clients forget their connections and begin again on the same ports."""
        self.generation += 1

    @invariant()
    def tables_are_bounded_and_agree(self) -> None:
        check_tables(self.tracker, LIMITS)

    @invariant()
    def the_events_announced_everything(self) -> None:
        self.subscriber.agrees_with(self.tracker)

    @invariant()
    def only_what_was_proven_is_active(self) -> None:
        initial = self.hosts[0].initial().four_tuple
        for connection in self.tracker.connections.values():
            for subflow in connection.active:
                # A proven join proves the initial subflow of its connection.
                assert subflow.four_tuple in self.proven or (subflow.four_tuple == initial and self.proven)

    @invariant()
    def states_are_counted_as_they_are(self) -> None:
        there = Counter(s.state for c in self.tracker.connections.values() for s in c.subflows)
        assert +self.tracker.states() == there

    @invariant()
    def every_subflow_is_in_a_state_of_its_own(self) -> None:
        seen = [s.four_tuple for c in self.tracker.connections.values() for s in c.subflows]
        assert len(seen) == len(set(seen))
        assert all(s.state is not SubflowState.CLOSED for c in self.tracker.connections.values() for s in c.subflows)


Conversation.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
TestConversation = Conversation.TestCase
