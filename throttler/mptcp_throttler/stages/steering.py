# SPDX-License-Identifier: GPL-2.0-or-later
"""Steers connections by the rules' modes (``mptcp_throttler.steering``), with balancing caps and backup flags. Pure.

A backup flag counts as set when the runtime confirms it. The stage clears a flag that no rule explains, because a rule
ended, the subflow changed its path or an earlier daemon was killed. If the kernel refuses the flag on one subflow, the
stage tries no other subflow of the connection, which usually is not under the user-space path manager. The kernel also
refuses the flag on a subflow that just ended, so the refusal holds only as long as a refused subflow exists.

For a connection at rest, a sample is only compared with the last sample. When data flow again, the connection's mode
first gets that last sample, so that rates do not include the time at rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, Sockets
from mptcp_throttler.policy.model import Direction, Policy, Rule, Share, Steer, Throttle
from mptcp_throttler.policy.verdict import ScopeKey, Verdict, add_sentence
from mptcp_throttler.stages.stage import SLICE, Effect, Outcome, Sampled, Samples, Stage
from mptcp_throttler.steering import Action, Crowd, Mode

MIN_URGENT_RATE = 100_000  # Bits/s. A connection that gets less, and has no data waiting, is not urgent.
URGENT_SECONDS = 2.0  # how long a connection stays urgent after data flowed
FIRST_SAMPLES = 2  # a connection is urgent until it has this many samples
SETTLED_SECONDS = 10.0  # when a connection has not been urgent for this long, its mode has nothing left to change
UNDECIDED_SECONDS = 5.0  # how long flags of an earlier daemon are kept while their connections are undecided


class SetBackup(NamedTuple):
    """Make a subflow backup, or regular again (MP_PRIO, RFC 8684, 3.3.8)."""

    token: int
    four_tuple: FourTuple
    backup: bool
    rule: str | None = None  # the rule that requests the change or set the flag; None if an earlier daemon set the flag


class BackupFlags:
    """The backup flags that one daemon set on subflows."""

    def __init__(self) -> None:
        self._set: dict[FourTuple, SetBackup] = {}  # for each flag that is set, the effect that clears it
        self.unexplained: set[FourTuple] = set()
        """Subflows with a flag that no rule explains, or that waits for the connection's first sample."""
        self.kept = False  # whether unexplained flags are kept, because their connections may be undecided
        self._kept_until: float | None = None
        self._fresh: set[FourTuple] = set()
        """Subflows whose flag was set or refused since the last complete samples: a sweep may be older than that."""
        self._refused: dict[int, set[FourTuple]] = {}  # subflows whose flag the kernel refused to set, by token

    def adopt(self, subflows: Iterable[KernelSubflow]) -> None:
        """Take over the flags of an earlier daemon. Keep them until ``UNDECIDED_SECONDS`` have passed."""
        for each in subflows:
            if each.made_backup and each.four_tuple not in self._set:
                self._set[each.four_tuple] = SetBackup(each.token, each.four_tuple, False)
                self.unexplained.add(each.four_tuple)
        self.kept, self._kept_until = True, None

    def leave(self, four_tuple: FourTuple) -> None:
        """Note that the subflow is no longer steered, or is steered differently."""
        if four_tuple in self._set:
            self.unexplained.add(four_tuple)

    def begin(self, samples: Samples) -> None:
        """Enforce ``UNDECIDED_SECONDS`` by the samples' time, and forget subflows without a socket."""
        if samples.complete:
            there = samples.sockets.keys() | self._fresh
            for four_tuple in self._set.keys() - there:
                self._unset(four_tuple)
            self._refused = {token: of & there for token, of in self._refused.items() if of & there}
            self._fresh.clear()
        if self._kept_until is None:
            self._kept_until = samples.time + UNDECIDED_SECONDS
        self.kept = self.kept and samples.time < self._kept_until

    def wanted(self, token: int, actions: Mapping[FourTuple, Action], rule: str) -> list[SetBackup]:
        """Return the effects that set and clear the flags of a connection as *actions* of *rule* request."""
        effects = []
        for four_tuple, action in actions.items():
            flag = self._set.get(four_tuple)
            backup = flag is not None and flag.token == token
            if backup:
                self.unexplained.discard(four_tuple)
                self._set[four_tuple] = SetBackup(token, four_tuple, False, rule)
            if action.backup is not backup and not (action.backup and token in self._refused):
                effects.append(SetBackup(token, four_tuple, action.backup, rule))
        return effects

    def cleared(self, sockets: Sockets) -> list[SetBackup]:
        """Return the effects that clear unexplained flags of existing sockets."""
        return [] if self.kept else [self._set[each] for each in self.unexplained if each in sockets]

    def confirmed(self, effect: SetBackup) -> None:
        self._unset(effect.four_tuple)
        if effect.backup:
            self._set[effect.four_tuple] = effect._replace(backup=False)
            self._fresh.add(effect.four_tuple)

    def refused(self, effect: SetBackup) -> None:
        """Note that the kernel refused *effect*; the flag is then set on no other subflow of the connection."""
        if effect.backup:
            self._refused.setdefault(effect.token, set()).add(effect.four_tuple)
            self._fresh.add(effect.four_tuple)
        else:
            self._unset(effect.four_tuple)

    def release_all(self) -> Sequence[SetBackup]:
        """Return the effects that make all subflows regular again when the daemon stops."""
        return list(self._set.values())

    def _unset(self, four_tuple: FourTuple) -> None:
        self._set.pop(four_tuple, None)
        self.unexplained.discard(four_tuple)


@dataclass(slots=True, eq=False)
class _Subflow:
    """The last sample of one steered subflow."""

    four_tuple: FourTuple
    path: str
    present: bool | None = None  # whether the subflow has a socket; None until a sample has it or a sweep misses it
    delivered: int = 0


@dataclass(slots=True, eq=False)
class _Steered:
    """One connection that one rule steers."""

    rule: str
    steer: Steer
    steering: Mode
    subflows: tuple[_Subflow, ...] = ()
    actions: dict[FourTuple, Action] = field(default_factory=dict)
    samples: int = 0  # number of samples since the subflows changed
    sampled: float = 0.0
    urgent_until: float = float("-inf")
    at_rest: bool = False  # whether the connection needs no action until data flow again
    skipped: list[tuple[str, KernelSubflow]] = field(default_factory=list)  # the last sample, if ``steering`` lacks it

    def set_subflows(self, path_of: Mapping[FourTuple, str]) -> bool:
        """Set the steered subflows and their paths; return whether they changed."""
        if {each.four_tuple: each.path for each in self.subflows} == path_of:
            return False
        before = {(each.four_tuple, each.path): each for each in self.subflows}
        self.subflows = tuple([before.get(each) or _Subflow(*each) for each in path_of.items()])
        self.actions = {each: action for each, action in self.actions.items() if each in path_of}
        self.begin()
        return True

    def begin(self) -> None:
        """Restart the count of samples, because the policy or the steered subflows changed."""
        self.samples, self.at_rest = 0, False

    def rest(self, sockets: Sockets, now: float) -> bool:
        """Record a sample if it needs no action. If it needs an action, return False and record nothing."""
        limit = MIN_URGENT_RATE / 8 * (now - self.sampled)
        for subflow in self.subflows:
            there = sockets.get(subflow.four_tuple)
            if there is None or there.tcp.not_sent or there.tcp.sacked:
                return False
            moved = there.bytes_acked - subflow.delivered
            if moved > limit or (moved <= 0 and there.tcp.unacked):
                return False
        self.skipped = [(subflow.path, sockets[subflow.four_tuple]) for subflow in self.subflows]
        for subflow, (_, there) in zip(self.subflows, self.skipped, strict=True):
            subflow.delivered = there.bytes_acked
        self.sampled = now
        self.samples += 1
        return True

    def observe(self, samples: Samples, crowds: WeakValueDictionary[tuple[str, bytes], Crowd]) -> None:
        if self.skipped:
            self.steering.observe(self.sampled, self.skipped, {})
            self.skipped = []
        taken = []
        flowing = False
        for subflow in self.subflows:
            there = samples.sockets.get(subflow.four_tuple)
            if there is None:
                subflow.present = False
                continue
            delivered = there.delivered
            moved = delivered - subflow.delivered if subflow.present else 0
            flowing = flowing or there.tcp.not_sent > 0 or 8 * moved > MIN_URGENT_RATE * (there.read - self.sampled)
            subflow.delivered, subflow.present = delivered, True
            taken.append((subflow.path, there))
        # Crowds are weakly referenced: a crowd exists as long as a connection's mode keeps it.
        crowd_of = {path: crowds.setdefault((path, each.four_tuple.remote), Crowd()) for path, each in taken}
        self.actions = self.steering.observe(samples.time, taken, crowd_of)
        self.sampled = min([each.read for _, each in taken], default=samples.time)
        self.samples += 1
        if flowing:
            self.urgent_until = self.sampled + URGENT_SECONDS
        settled = self.sampled >= self.urgent_until + SETTLED_SECONDS
        self.at_rest = not flowing and len(taken) == len(self.subflows) and settled

    @property
    def urgent(self) -> bool:
        return self.samples < FIRST_SAMPLES or self.sampled < self.urgent_until


class SteeringStage(Stage):
    interval = period = 0.2

    def __init__(self) -> None:
        self._connections: dict[int, _Steered] = {}
        self._sampled = Sampled()
        self._urgent: set[int] = set()
        self.flags = BackupFlags()
        self._crowds: WeakValueDictionary[tuple[str, bytes], Crowd] = WeakValueDictionary()
        """By path and client address."""

    def set_policy(self, policy: Policy) -> None:
        """Adopt *policy*, which is now in force. Connections under the same mode keep their state, e.g. a fail-over."""
        for connection in self._connections.values():
            connection.begin()
        self._urgent |= self._connections.keys()

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Return *verdicts* with the caps that balance loads and the reasons of steered subflows."""
        token = connection.token
        rule, path_of = steered(verdicts)
        if rule is None or rule.steer is None:
            self.forget(token)
            return verdicts
        known = self._connections.get(token)
        if known is None or known.steer != rule.steer:
            self.forget(token)
            known = self._connections[token] = _Steered(rule.name, rule.steer, rule.steer.create_mode())
        known.rule = rule.name  # another policy may have the same mode under another name
        before = known.subflows
        if known.set_subflows(path_of):
            self._stop_sampling(token, before)
            self._sampled |= dict.fromkeys(path_of, token)
            self._urgent.add(token)
        return tuple([self._acted_on(each, rule, token, known.actions) for each in verdicts])

    def _acted_on(self, verdict: Verdict, rule: Rule, token: int, actions: Mapping[FourTuple, Action]) -> Verdict:
        if verdict.steer is not rule or rule.steer is None or verdict.direction is not Direction.DOWN:
            return verdict
        action = actions.get(verdict.four_tuple)
        sentence = f"steered {rule.steer.mode} by rule {rule.name}" + (f": {action.reason}" if action else "")
        verdict = verdict._replace(reason=add_sentence(verdict.reason, sentence))
        if action is None or action.rate is None or not self.acts:
            return verdict
        cap = verdict.throttle
        # The tighter cap applies. A shared cap always stays: in its own class, the connection would escape that cap.
        if cap is not None and (cap.share is not Share.CONNECTION or cap.ceil <= action.rate):
            return verdict
        throttle = Throttle(rate=action.rate, share=Share.CONNECTION)
        scope = ScopeKey(rule.name, Share.CONNECTION, (token, str(verdict.steer_path)))
        return verdict._replace(rule=rule, scope=scope, throttle=throttle)

    def forget(self, token: int) -> None:
        known = self._connections.pop(token, None)
        if known is not None:
            known.steering.leave()
            self._urgent.discard(token)
            self._stop_sampling(token, known.subflows)

    def _stop_sampling(self, token: int, subflows: Collection[_Subflow]) -> None:
        self._sampled.remove(token, [each.four_tuple for each in subflows])
        for each in subflows:
            self.flags.leave(each.four_tuple)

    def watched(self) -> Set[FourTuple]:
        """Return all subflows that are steered or have an unexplained flag."""
        unexplained = self.flags.unexplained
        return self._sampled.keys() | unexplained if unexplained else self._sampled.keys()

    def urgent(self) -> Set[FourTuple]:
        """Return the subflows of connections that are new or carry data, and subflows whose flag must be cleared."""
        found = set(() if self.flags.kept else self.flags.unexplained)
        for token in self._urgent:
            found.update([each.four_tuple for each in self._connections[token].subflows])
        return found

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        sockets, urgent = samples.sockets, self._urgent
        changed: list[int] = []
        effects: list[Effect] = []
        self.flags.begin(samples)
        for number, token in enumerate(self._sampled.tokens(samples, self._connections), 1):
            if not number % SLICE:
                yield Outcome(changed, effects)
                changed, effects = [], []
            connection = self._connections.get(token)
            if connection is None:
                continue  # the connection ended between two slices
            if connection.at_rest and connection.rest(sockets, samples.time):
                if token in urgent and not connection.urgent:
                    urgent.discard(token)
                continue
            if not samples.complete and any(
                each.present is not False and each.four_tuple not in sockets for each in connection.subflows
            ):
                continue  # these are partial samples, without a subflow that probably exists
            before = connection.actions
            connection.observe(samples, self._crowds)
            (urgent.add if connection.urgent else urgent.discard)(token)
            if before != connection.actions:
                changed.append(token)
            if connection.steer.mode_class.sets_backup and self.acts:
                wanted = self.flags.wanted(token, connection.actions, connection.rule)
                connection.at_rest = connection.at_rest and not wanted
                effects += wanted
        for flag in self.flags.cleared(sockets):
            connection = self._connections.get(flag.token)
            if connection is None or connection.samples:  # otherwise its first sample may still explain the flag
                effects.append(flag)
        yield Outcome(changed, effects)

    def confirmed(self, effect: SetBackup) -> None:
        self.flags.confirmed(effect)
        if self._sampled.get(effect.four_tuple) != effect.token:
            self.flags.leave(effect.four_tuple)  # the subflow is no longer steered

    def adopt(self, subflows: Iterable[KernelSubflow]) -> None:
        """Take over the flags that an earlier daemon left. Flags that no rule explains are cleared later."""
        self.flags.adopt(subflows)
        for connection in self._connections.values():
            connection.begin()


def steered(verdicts: tuple[Verdict, ...]) -> tuple[Rule | None, dict[FourTuple, str]]:
    """Return the first rule that steers a connection, if any, and the paths of its subflows. Only the first rule
    counts, because a connection's data cannot follow two modes."""
    rule: Rule | None = None
    path_of: dict[FourTuple, str] = {}
    for each in verdicts:
        steer = None if each.steer is None else each.steer.steer
        if steer is None or not steer.mode_class.spreads_data or each.steer_path is None:
            continue
        if each.direction is Direction.DOWN and (rule is None or each.steer is rule):
            rule = each.steer
            path_of[each.four_tuple] = each.steer_path
    return rule, path_of
