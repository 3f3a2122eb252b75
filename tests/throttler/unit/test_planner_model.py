# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the planner, after random histories, equals a new planner that got only the last verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from policy_values import a_rule, a_throttle, replace
from test_shaping_plan import NOW, PROXY, policy

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Direction, Onset, Share, Throttle
from mptcp_throttler.policy.verdict import ScopeKey, Verdict
from mptcp_throttler.shaping import cap as cap_module
from mptcp_throttler.shaping.cap import Member, PlanError
from mptcp_throttler.shaping.model import FIRST_MINOR, ClassSpec, Ownership
from mptcp_throttler.shaping.plan import DRAIN_SECONDS, IDLE_SECONDS, UNCAPPED, Planner

NUMBERS = st.integers(0, 3)
"""Numbers of four-tuples. Each client has two ports."""
INDEXES = st.integers(0, 11)
"""Index of an existing object, modulo the number of objects."""
RULES = ("a", "b")
OUTCOMES = st.sampled_from((None, *RULES, "step", "balance"))
"""Origin of a subflow's cap: none, a rule, a step of a budget, or load balancing."""
OUTCOMES_BY_NUMBER = st.dictionaries(NUMBERS, OUTCOMES, min_size=1, max_size=3)
"""Origin of each subflow's cap, by the subflow's number."""
RATES = st.sampled_from((1_000_000, 5_000_000, 8_000_000))
THROTTLES = st.builds(
    lambda rate, share, onset: a_throttle(rate, rate, None, share, onset),
    RATES,
    st.sampled_from(Share),
    st.sampled_from(Onset),
)
SECONDS = st.sampled_from((0.5, DRAIN_SECONDS, IDLE_SECONDS, 86_400.0))


def subflow(number: int) -> FourTuple:
    client, port = divmod(number, 2)
    return FourTuple(PROXY, 3128, b"\x0a\x01\x00" + bytes([client]), 40000 + port)


@dataclass
class Connection:
    outcomes: dict[int, str | None]
    """Origin of each subflow's cap, by the subflow's number."""
    balanced_rate: int = 1_000_000
    """Rate of the load-balancing cap, in bit/s."""
    young: set[int] = field(default_factory=set)
    """Numbers of the subflows that are so new that their caps need no transition."""


class History(RuleBasedStateMachine):
    """Each method with @rule is an event that a planner handles. The fields but ``planner`` are the expected state."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.direction = Direction.DOWN
        self.soft = True
        self.now = NOW
        self.connections: dict[int, Connection] = {}
        self.undecided: set[int] = set()
        """Tokens of connections that must be decided, including ended ones."""
        self.refused: set[int] = set()
        """Tokens of connections that had a subflow without a class when they were last decided."""
        self.policy = policy()
        self.is_reloading = True
        """Whether a policy was reloaded and some connections are not yet decided under it."""
        self.next_token = 1
        self.planner = Planner(Ownership())

    @initialize(
        direction=st.sampled_from(Direction),
        soft=st.booleans(),
        class_count=st.sampled_from((3, 100)),
        throttles=st.fixed_dictionaries(dict.fromkeys(RULES, THROTTLES)),
        outcomes=st.lists(OUTCOMES_BY_NUMBER, min_size=1, max_size=3),
    )
    def begin(
        self,
        direction: Direction,
        soft: bool,
        class_count: int,
        throttles: Mapping[str, Throttle],
        outcomes: list[dict[int, str | None]],
    ) -> None:
        self.patch.setattr(cap_module, "LAST_MINOR", FIRST_MINOR + class_count - 1)
        self.direction, self.soft = direction, soft
        self.planner = self.new_planner()
        self.planner.soft_caps = soft
        self.reload(throttles, reverse=False)
        self.end_reload()
        for each in outcomes:
            self.connect(each, young=False, decide_now=True)

    def new_planner(self) -> Planner:
        planner = Planner(Ownership(), self.direction)
        planner.set_policy(self.policy)
        return planner

    def verdicts(self, token: int) -> list[Verdict]:
        connection = self.connections.get(token)
        if connection is None:
            return []
        return [self.verdict(token, connection, number) for number in connection.outcomes]

    def verdict(self, token: int, connection: Connection, number: int) -> Verdict:
        outcome = connection.outcomes[number]
        uncapped = Verdict(subflow(number), None, None, None, None, "", self.direction)
        throttles = {each.name: each.throttle for each in self.policy.rules}
        found = throttles.get("a" if outcome in ("step", "balance") else outcome or "")
        if found is None:
            return uncapped
        if outcome == "step":
            throttle = a_throttle(500_000, 500_000, None, Share.PATH)
            scope = ScopeKey("a", Share.PATH, None, self.direction, 1000)
        elif outcome == "balance":
            throttle = a_throttle(connection.balanced_rate, connection.balanced_rate, None, Share.CONNECTION)
            scope = ScopeKey("a", Share.CONNECTION, (token, "path"), self.direction)
        else:
            assert outcome is not None
            throttle = found
            members = {Share.PATH: None, Share.CLIENT: subflow(number).remote, Share.CONNECTION: token}
            scope = ScopeKey(outcome, throttle.share, members[throttle.share], self.direction)
        return replace(uncapped, scope=scope, throttle=throttle)

    def decide_token(self, token: int) -> None:
        self.undecided.discard(token)
        self.refused.discard(token)
        connection = self.connections.get(token)
        young = set() if connection is None else {subflow(number) for number in connection.young}
        try:
            self.planner.set_verdicts(token, self.verdicts(token), self.now, young)
        except PlanError:
            self.refused.add(token)
        self.end_reload()

    def end_reload(self) -> None:
        if self.is_reloading and not self.undecided:
            self.is_reloading = False
            self.planner.expire(self.now)
            with suppress(PlanError):
                self.planner.prepare_path_classes(self.now)
            scopes = [ScopeKey(each, Share.PATH, None, self.direction) for each in RULES]
            handles = [self.planner.class_of(scope) for scope in scopes]
            self.planner.initial_classes = {each for each in handles if each is not None}

    # Actions of clients

    @rule(outcomes=OUTCOMES_BY_NUMBER, young=st.booleans(), decide_now=st.booleans())
    def connect(self, outcomes: dict[int, str | None], young: bool, decide_now: bool) -> None:
        """Begin a connection. It may use ports of a connection that has not ended yet."""
        for token, other in self.connections.items():
            if other.outcomes.keys() & outcomes.keys():
                other.outcomes = {each: outcome for each, outcome in other.outcomes.items() if each not in outcomes}
                self.undecided.add(token)
        token, self.next_token = self.next_token, self.next_token + 1
        self.connections[token] = Connection(outcomes, young=set(outcomes) if young else set())
        self.undecided.add(token)
        if decide_now:
            self.decide_token(token)

    def pick_token(self, index: int) -> int:
        return list(self.connections)[index % len(self.connections)]

    @precondition(lambda self: self.connections)
    @rule(index=INDEXES, decide_now=st.booleans())
    def end(self, index: int, decide_now: bool) -> None:
        token = self.pick_token(index)
        del self.connections[token]
        self.undecided.add(token)
        if decide_now:
            self.decide_token(token)

    @precondition(lambda self: self.connections)
    @rule(index=INDEXES, subflow_index=INDEXES, outcome=OUTCOMES, ends=st.booleans(), balanced_rate=RATES)
    def change(self, index: int, subflow_index: int, outcome: str | None, ends: bool, balanced_rate: int) -> None:
        """End one subflow of a connection, or change the origin of its cap."""
        token = self.pick_token(index)
        connection = self.connections[token]
        connection.balanced_rate = balanced_rate
        connection.young.clear()
        numbers = list(connection.outcomes)
        if numbers:
            number = numbers[subflow_index % len(numbers)]
            connection.outcomes[number] = outcome
            if ends:
                del connection.outcomes[number]
        self.decide_token(token)

    @precondition(lambda self: self.undecided)
    @rule(index=INDEXES)
    def decide(self, index: int) -> None:
        self.decide_token(sorted(self.undecided)[index % len(self.undecided)])

    @rule()
    def decide_all(self) -> None:
        for token in sorted(self.undecided):
            self.decide_token(token)

    # Actions of the operator, the clock and the kernel

    @rule(
        throttles=st.dictionaries(st.sampled_from(RULES), THROTTLES),
        reverse=st.booleans(),
    )
    def reload(self, throttles: Mapping[str, Throttle], reverse: bool) -> None:
        rules = [
            a_rule(name, None, throttle, direction=frozenset({self.direction})) for name, throttle in throttles.items()
        ]
        self.policy = policy(*(reversed(rules) if reverse else rules))
        self.planner.set_policy(self.policy)
        self.undecided |= self.connections.keys()
        self.is_reloading = True

    @precondition(lambda self: self.policy.rules)
    @rule(index=INDEXES, rate=RATES, onset=st.sampled_from(Onset))
    def change_rate_and_onset(self, index: int, rate: int, onset: Onset) -> None:
        """Reload a policy in which one rule has another rate and onset."""
        throttles = {each.name: each.throttle for each in self.policy.rules if each.throttle is not None}
        name = list(throttles)[index % len(throttles)]
        throttles[name] = replace(throttles[name], rate=rate, ceil=rate, landing=onset)
        self.reload(throttles, reverse=False)

    @rule()
    def kill(self) -> None:
        """Start another daemon, which adopts the kernel's state."""
        killed, self.planner = self.planner, self.new_planner()
        self.planner.adopt(killed.classes.actual, killed.entries.actual)
        self.planner.soft_caps = self.soft
        self.undecided, self.is_reloading = set(self.connections), True

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.planner.expire(self.now)

    @rule(classes=st.booleans(), entries=st.booleans())
    def apply(self, classes: bool, entries: bool) -> None:
        """Apply planned changes as the kernel does."""
        if classes:
            self.planner.classes.record_upserts(dict(self.planner.classes.upserts))
            self.planner.classes.record_deletes(set(self.planner.classes.deletes))
        if entries:
            self.planner.entries.record_upserts(dict(self.planner.entries.upserts))
            self.planner.entries.record_deletes(set(self.planner.entries.deletes))

    # Actions of transitions

    @precondition(lambda self: self.planner.pending())
    @rule(number=NUMBERS)
    def complete(self, number: int) -> None:
        if self.planner.soft_cap(subflow(number)) is not None:
            self.planner.complete(subflow(number))

    @precondition(lambda self: self.soft)
    @rule(number=NUMBERS, rate=st.none() | RATES)
    def step(self, number: int, rate: int | None) -> None:
        self.planner.set_interim({subflow(number): rate})

    @precondition(lambda self: self.planner.overdue(1))
    @rule(busy=st.booleans())
    def settle_ended_subflows(self, busy: bool) -> None:
        for four_tuple in self.planner.overdue(2):
            self.planner.settle_overdue(four_tuple, busy=busy)

    # Invariants at any time

    @invariant()
    def entries_name_existing_classes(self) -> None:
        existing = {*self.planner.classes.desired, UNCAPPED.minor}
        assert {target.minor for target in self.planner.entries.desired.values()} <= existing

    @invariant()
    def decided_subflows_have_their_cap_or_wait_for_it(self) -> None:
        for token in self.connections.keys() - self.undecided:
            for verdict in self.verdicts(token):
                target = self.planner.entries.desired.get(verdict.four_tuple)
                if verdict.scope is None:
                    assert target in (None, UNCAPPED)
                elif token not in self.refused and verdict.four_tuple not in self.planner.pending():
                    assert target is not None
                    assert target.minor == self.planner.caps[verdict.scope].minor
                assert verdict.four_tuple not in self.planner.draining

    @invariant()
    def only_subflows_with_a_soft_cap_are_pending(self) -> None:
        for four_tuple in self.planner.pending():
            assert self.soft
            assert self.planner.soft_cap(four_tuple) is not None

    # Invariants at the end

    def teardown(self) -> None:
        try:
            self.settle()
            # If all classes are in use, a connection keeps its former cap. Others may wait for that cap's class.
            while self.refused or (expected := self.expected_planner()) is None:
                token = next(iter(self.refused or self.connections))
                del self.connections[token]
                self.undecided.add(token)
                self.settle()
            compare(self.planner, expected)
        finally:
            self.patch.undo()

    def expected_planner(self) -> Planner | None:
        """Return a planner that got only the last verdicts, or None if it has too few classes."""
        planner = self.new_planner()
        try:
            for token in self.connections:
                planner.set_verdicts(token, self.verdicts(token), self.now)
            planner.prepare_path_classes(self.now)
        except PlanError:
            return None
        return planner

    def settle(self) -> None:
        """Decide every connection, complete every transition, and expire idle classes.

        Repeat this three times, because idle caps may have the classes that others need.
        """
        for _ in range(3):
            self.settle_once()

    def settle_once(self) -> None:
        planner = self.planner
        # Decide in the same order as after a reload: ended connections first.
        self.is_reloading = True
        tokens = {*self.undecided, *self.refused, *self.connections}
        self.undecided |= tokens
        for token in sorted(tokens, key=lambda token: (token in self.connections, token)):
            self.decide_token(token)
        self.end_reload()
        for cap in planner.caps.values():
            planner.set_interim(dict.fromkeys(cap.interim_rates))
        for four_tuple in planner.pending():
            assert planner.complete(four_tuple)
        for seconds in (0.0, DRAIN_SECONDS, IDLE_SECONDS):
            self.now += seconds
            planner.expire(self.now)
            for four_tuple in planner.overdue(100):
                planner.settle_overdue(four_tuple, busy=False)
        planner.take_changed_subflows(1000)
        self.apply(classes=True, entries=True)


def cap_and_mark_of_entries(planner: Planner) -> dict[FourTuple, tuple[ScopeKey, int]]:
    """Return cap and mark of each entry."""
    scopes = {cap.minor: scope for scope, cap in planner.caps.items()}
    entries = planner.entries.desired.items()
    return {each: (scopes[target.minor], target.mark) for each, target in entries if target != UNCAPPED}


def specs(planner: Planner) -> dict[ScopeKey, ClassSpec]:
    """Return the class of each cap without its number and queue length, which depend on earlier caps."""
    classes = planner.classes.desired
    return {
        scope: replace(classes[cap.minor], minor=0, queue_packets=0)
        for scope, cap in planner.caps.items()
        if classes[cap.minor] == cap.spec
    }


def token_and_scope(member: Member) -> tuple[int | None, ScopeKey | None]:
    return member.token, None if member.cap is None else member.cap.scope


def compare(planner: Planner, expected: Planner) -> None:
    assert cap_and_mark_of_entries(planner) == cap_and_mark_of_entries(expected)
    assert specs(planner) == specs(expected)
    assert len(planner.classes.desired) == len(planner.caps) == len(expected.caps)
    assert planner.classes.settled
    assert planner.entries.settled
    members = planner.members
    exempt = {each: target for each, target in planner.entries.desired.items() if target == UNCAPPED}
    assert all(members[each].accepted_in_class for each in exempt)
    assert {each: token_and_scope(member) for each, member in members.items() if each not in exempt} == {
        each: token_and_scope(member) for each, member in expected.members.items()
    }
    assert {each for four_tuples in planner._connections.values() for each in four_tuples} == members.keys()
    assert not any(member.entry_cap or member.rests for member in members.values())
    assert planner.draining == {}
    assert not planner.changed_subflows
    assert planner._numbers._used == planner._by_minor.keys() == {cap.minor for cap in planner.caps.values()}
    assert planner._shared == {cap.minor: cap for cap in planner.caps.values() if len(cap.users) > 1}
    for scope, cap in planner.caps.items():
        assert cap.users.keys() == expected.caps[scope].users.keys()
        assert all(member.cap is cap and members[each] is member for each, member in cap.users.items())
        assert cap.final_throttle == cap.throttle
        assert cap.pending == cap.lowered == set()
        assert not cap.decision_times
        assert cap.held_entries == 0
        assert cap.interim_rates == {}


History.TestCase.settings = settings(
    max_examples=examples(250), stateful_step_count=40, deadline=None, derandomize=True
)
TestHistory = History.TestCase
