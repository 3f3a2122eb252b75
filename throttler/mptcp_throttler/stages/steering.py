"""Steers connections by the rules' modes (``mptcp_throttler.steering``): balancing caps, backup flags as effects. Pure.

Cost: a connection at rest with little traffic is only compared with its last sample. When data flow again, its steering
first gets that last sample, so that rates do not include the time at rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Direction, Policy, Rule, Share, Steer, Throttle
from mptcp_throttler.policy.verdict import ScopeKey, Verdict, joined
from mptcp_throttler.stages.backup_flags import BackupFlags, SetBackup
from mptcp_throttler.stages.stage import SLICE, Effect, Outcome, Sampled, Samples, Stage
from mptcp_throttler.steering.mode import Action, Crowd, SubflowSample

MIN_URGENT_RATE = 100_000
"""Bits/s. A connection that gets less, with nothing waiting, is not urgent."""
URGENT_SECONDS = 2.0
"""How long a connection stays urgent after data flowed."""
FIRST_SAMPLES = 2
"""A connection is urgent until it has this many."""


class _Crowds:
    """The crowds, each kept as long as a connection is part of it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[str, bytes], Crowd] = WeakValueDictionary()

    def of(self, path: str, four_tuple: FourTuple) -> Crowd:
        found = self._known.get((path, four_tuple.remote))
        if found is None:
            found = self._known[path, four_tuple.remote] = Crowd()
        return found


class _Subflow:
    """The last sample of one steered subflow."""

    __slots__ = ("delivered", "four_tuple", "path", "present")

    def __init__(self, four_tuple: FourTuple, path: str) -> None:
        self.four_tuple = four_tuple
        self.path = path
        self.present: bool | None = None
        """None until a sample has it or a sweep misses it."""
        self.delivered = 0


class _Steered:
    """One connection that one rule steers."""

    __slots__ = (
        "actions",
        "at_rest",
        "rule",
        "sampled",
        "samples",
        "skipped",
        "steer",
        "steering",
        "subflows",
        "urgent_until",
    )

    def __init__(self, rule: str, steer: Steer) -> None:
        self.rule = rule
        self.steer = steer
        self.steering = steer.kind(steer.paths, steer.given)
        self.subflows: tuple[_Subflow, ...] = ()
        self.actions: dict[FourTuple, Action] = {}
        self.samples = 0
        """Number of samples since the subflows changed."""
        self.sampled = 0.0
        self.urgent_until = float("-inf")
        self.at_rest = False
        """Nothing to do unless data flow."""
        self.skipped = False
        """``steering`` did not get the last sample."""

    def set_subflows(self, path_of: Mapping[FourTuple, str]) -> bool:
        """Set the steered subflows and their paths; return whether they changed."""
        if {each.four_tuple: each.path for each in self.subflows} == path_of:
            return False
        before = {(each.four_tuple, each.path): each for each in self.subflows}
        self.subflows = tuple([before.get(each) or _Subflow(*each) for each in path_of.items()])
        self.actions = {each: action for each, action in self.actions.items() if each in path_of}
        self.samples, self.at_rest = 0, False
        return True

    def rest(self, sockets: Mapping[FourTuple, KernelSubflow], now: float) -> bool:
        """Take a sample that needs no action; return False, and take nothing, if it needs one."""
        limit = MIN_URGENT_RATE / 8 * (now - self.sampled)
        moved_at_all = False
        for subflow in self.subflows:
            there = sockets.get(subflow.four_tuple)
            if there is None:
                return False
            tcp = there.tcp
            if tcp.not_sent or tcp.sacked:
                return False
            moved = there.bytes_acked - subflow.delivered
            if moved > 0:
                if moved > limit:
                    return False
                moved_at_all = True
            elif tcp.unacked:
                return False
        if moved_at_all:
            for subflow in self.subflows:
                subflow.delivered = sockets[subflow.four_tuple].bytes_acked
        self.sampled, self.skipped = now, True
        self.samples += 1
        return True

    def observe(self, samples: Samples, crowds: _Crowds) -> None:
        now = samples.time
        if self.skipped:
            self.steering.observe(
                self.sampled,
                [SubflowSample(each.four_tuple, each.path, self.sampled, each.delivered, 0) for each in self.subflows],
            )
            self.skipped = False
        taken = []
        flowing = False
        for subflow in self.subflows:
            there = samples.sockets.get(subflow.four_tuple)
            if there is None:
                subflow.present = False
                continue
            delivered, tcp = there.delivered, there.tcp
            moved = delivered - subflow.delivered if subflow.present else 0
            flowing = flowing or tcp.not_sent > 0 or 8 * moved > MIN_URGENT_RATE * (there.read - self.sampled)
            subflow.delivered, subflow.present = delivered, True
            taken.append(
                SubflowSample(
                    subflow.four_tuple,
                    subflow.path,
                    there.read,
                    delivered,
                    tcp.not_sent,
                    tcp.unacked,
                    tcp.rtt / 1e6,
                )
            )
        there_too = {each.path: crowds.of(each.path, each.four_tuple) for each in taken}
        self.actions = self.steering.observe(now, taken, there_too)
        self.sampled = min([each.read for each in taken], default=now)
        self.samples += 1
        if flowing:
            self.urgent_until = self.sampled + URGENT_SECONDS
        self.at_rest = not flowing and len(taken) == len(self.subflows) and self.steering.at_rest

    @property
    def urgent(self) -> bool:
        return self.samples < FIRST_SAMPLES or self.sampled < self.urgent_until


class SteeringStage(Stage):
    """The steering of one daemon."""

    interval = period = 0.2

    def __init__(self, policy: Policy) -> None:
        self._dry_run = policy.dry_run
        self._connections: dict[int, _Steered] = {}
        self._sampled = Sampled()
        self._urgent: set[int] = set()
        self._flags = BackupFlags()
        self._crowds = _Crowds()

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force. Connections under the same mode keep their state, such as a fail-over."""
        self._dry_run = policy.dry_run
        for connection in self._connections.values():
            connection.samples, connection.at_rest = 0, False
        self._urgent |= self._connections.keys()
        self._flags.leave_undecided()

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Return *verdicts* with the caps that balance loads and the reasons of steered subflows."""
        del now
        token = connection.token
        rule, path_of = steered(verdicts)
        if rule is None or rule.steer is None:
            self.forget(token)
            return verdicts
        known = self._connections.get(token)
        if known is None or known.steer != rule.steer:
            self.forget(token)
            known = self._connections[token] = _Steered(rule.name, rule.steer)
        known.rule = rule.name  # another policy may have the same mode under another name
        before = known.subflows
        if known.set_subflows(path_of):
            self._stop_sampling(token, before)
            self._sampled.add(token, path_of)
            self._urgent.add(token)
        return tuple([self._acted_on(each, rule, token, known.actions) for each in verdicts])

    def _acted_on(self, verdict: Verdict, rule: Rule, token: int, actions: Mapping[FourTuple, Action]) -> Verdict:
        if verdict.steer is not rule or rule.steer is None or verdict.direction is not Direction.DOWN:
            return verdict
        action = actions.get(verdict.four_tuple)
        sentence = f"steered {rule.steer.mode} by rule {rule.name}" + (f": {action.reason}" if action else "")
        verdict = replace(verdict, reason=joined(verdict.reason, sentence))
        if action is None or action.rate is None or self._dry_run:
            return verdict
        cap = verdict.throttle
        # The tighter cap holds. A shared cap stays: in a class of its own the connection would escape it.
        if cap is not None and (cap.share is not Share.CONNECTION or cap.ceil <= action.rate):
            return verdict
        throttle = Throttle(rate=action.rate, share=Share.CONNECTION)
        scope = ScopeKey(rule.name, Share.CONNECTION, (token, str(verdict.steer_path)))
        return replace(verdict, rule=rule, scope=scope, throttle=throttle)

    def forget(self, token: int) -> None:
        """Drop connection *token*, which has ended or is no longer steered."""
        self._flags.decide(token)
        known = self._connections.pop(token, None)
        if known is not None:
            known.steering.leave()
            self._urgent.discard(token)
            self._stop_sampling(token, known.subflows)

    def _stop_sampling(self, token: int, subflows: Collection[_Subflow]) -> None:
        self._sampled.remove(token, [each.four_tuple for each in subflows])
        for each in subflows:
            self._flags.leave(each.four_tuple)

    def watched(self) -> Collection[FourTuple]:
        """Return all subflows that are steered or have an unexplained flag."""
        unexplained, steered_ones = self._flags.unexplained, self._sampled.four_tuples
        return steered_ones | set(unexplained) if unexplained else steered_ones

    def urgent(self) -> Collection[FourTuple]:
        """Return the subflows of connections that are new or carry data, and those whose flag must go."""
        found = set(self._flags.to_take_back)
        for token in self._urgent:
            found.update([each.four_tuple for each in self._connections[token].subflows])
        return found

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        """Take *samples*, a slice at a time; yield the connections whose actions changed, and the flags to set."""
        now, sockets, complete, _ = samples
        urgent = self._urgent
        changed: list[int] = []
        effects: list[Effect] = []
        if complete:
            self._flags.forget_gone(sockets)
        self._flags.begin(now)
        for number, token in enumerate(self._sampled.tokens(samples, self._connections), 1):
            if not number % SLICE:
                yield Outcome(changed, effects)
                changed, effects = [], []
            connection = self._connections.get(token)
            if connection is None:
                continue  # it ended between two slices
            if connection.at_rest and connection.rest(sockets, now):
                if token in urgent and not connection.urgent:
                    urgent.discard(token)
                continue
            if not complete and any(
                each.present is not False and each.four_tuple not in sockets for each in connection.subflows
            ):
                continue  # a partial sample that lacks a subflow believed to exist
            before = connection.actions
            connection.observe(samples, self._crowds)
            (urgent.add if connection.urgent else urgent.discard)(token)
            if before != connection.actions:
                changed.append(token)
            if connection.steer.kind.sets_backup and not self._dry_run:
                wanted = self._flags.wanted(token, connection.actions, connection.rule)
                connection.at_rest = connection.at_rest and not wanted
                effects += wanted
        effects += self._flags.taken_back(sockets, self._may_explain)
        yield Outcome(changed, effects)

    def _may_explain(self, token: int) -> bool:
        """Return whether the connection's first sample is yet to come."""
        connection = self._connections.get(token)
        return connection is not None and connection.samples == 0

    def confirmed(self, effect: SetBackup) -> None:
        """Note that the kernel carried out *effect*."""
        self._flags.confirmed(effect, explained=self._sampled.is_of(effect.token, effect.four_tuple))

    def refused(self, effect: SetBackup) -> None:
        """Note that the kernel refused *effect*. It is not tried again, nor on other subflows of the connection."""
        self._flags.refused(effect)

    def adopt(self, subflows: Iterable[KernelSubflow]) -> None:
        """Take over the flags that an earlier daemon left; those that no rule explains are taken back later."""
        self._flags.adopt(subflows)
        for token, connection in self._connections.items():
            self._flags.decide(token)
            connection.samples, connection.at_rest = 0, False

    def release_all(self) -> Sequence[SetBackup]:
        """Return the effects that make all subflows regular again, for when the daemon stops."""
        return self._flags.release_all()


def steered(verdicts: tuple[Verdict, ...]) -> tuple[Rule | None, dict[FourTuple, str]]:
    """Return the first rule that steers a connection, if any, and its subflows' paths. Data cannot follow two modes."""
    rule: Rule | None = None
    path_of: dict[FourTuple, str] = {}
    for each in verdicts:
        steer = None if each.steer is None else each.steer.steer
        if steer is None or not steer.kind.spreads or each.steer_path is None:
            continue
        if each.direction is Direction.DOWN and (rule is None or each.steer is rule):
            rule = each.steer
            path_of[each.four_tuple] = each.steer_path
    return rule, path_of
