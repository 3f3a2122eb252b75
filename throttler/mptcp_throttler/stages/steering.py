# SPDX-License-Identifier: GPL-2.0-or-later
"""Steers connections by the rules' modes (``mptcp_throttler.steering``), with balancing caps and backup flags. Pure.

A backup flag counts as set when the runtime confirms it. The stage clears a flag that no rule requires, e.g. because
the subflow changed its path or an earlier daemon was killed. If the kernel refuses the flag on one subflow, the stage
tries no other subflow of the connection, which usually is not under the user-space path manager. The kernel also
refuses the flag on a subflow that just ended, so the refusal holds only as long as a refused subflow exists.

While a connection is quiet, a sample is only compared with the last sample. When data flow again, the connection's mode
first gets that last sample, so that rates do not include the quiet time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, Sockets
from mptcp_throttler.policy.model import Direction, Policy, Rule, Share, Steer, Throttle
from mptcp_throttler.policy.verdict import ScopeKey, Verdict, add_sentence
from mptcp_throttler.stages.stage import SLICE, Action, Outcome, SampledSubflows, Samples, Stage
from mptcp_throttler.steering import ClientLoad, Mode, Treatment

MIN_URGENT_RATE = 100_000  # Bits/s. A connection that gets less, and has no data waiting, is not urgent.
URGENT_SECONDS = 2.0  # how long a connection stays urgent after data flowed
FIRST_SAMPLES = 2  # a connection is urgent until it has this many samples
SETTLED_SECONDS = 10.0  # when a connection has not been urgent for this long, its mode makes no further changes
UNDECIDED_SECONDS = 5.0  # how long flags of an earlier daemon stay while their connections are undecided


class SetBackup(NamedTuple):
    """Make a subflow backup, or regular again (MP_PRIO, RFC 8684, 3.3.8)."""

    token: int
    four_tuple: FourTuple
    backup: bool
    rule: str | None = None  # the rule that requests the change or set the flag; None if an earlier daemon set the flag


class BackupFlags:
    """The backup flags that one daemon set on subflows."""

    def __init__(self) -> None:
        self._set_flags: dict[FourTuple, SetBackup] = {}  # for each flag that is set, the action that clears it
        self.unrequired: set[FourTuple] = set()
        """Subflows with a flag that no rule requires, or that waits for the connection's first sample."""
        self.keeps_unrequired = False  # whether unrequired flags stay, because their connections may be undecided
        self._keep_until: float | None = None
        self._recent: set[FourTuple] = set()
        """Subflows whose flag was set or refused since the last complete samples: the next sweep may lack them."""
        self._refusals: dict[int, set[FourTuple]] = {}  # subflows whose flag the kernel refused to set, by token

    def adopt(self, subflows: Iterable[KernelSubflow]) -> None:
        """Take over the flags of an earlier daemon. Keep them until ``UNDECIDED_SECONDS`` have passed."""
        for each in subflows:
            if each.made_backup and each.four_tuple not in self._set_flags:
                self._set_flags[each.four_tuple] = SetBackup(each.token, each.four_tuple, False)
                self.unrequired.add(each.four_tuple)
        self.keeps_unrequired, self._keep_until = True, None

    def note_unrequired(self, four_tuple: FourTuple) -> None:
        """Note that the subflow is no longer steered, or is steered differently."""
        if four_tuple in self._set_flags:
            self.unrequired.add(four_tuple)

    def begin_samples(self, samples: Samples) -> None:
        """Enforce ``UNDECIDED_SECONDS`` at the samples' time, and forget subflows without a socket."""
        if samples.complete:
            existing = samples.sockets.keys() | self._recent
            for four_tuple in self._set_flags.keys() - existing:
                self._forget(four_tuple)
            refusals = self._refusals.items()
            self._refusals = {token: remaining for token, subflows in refusals if (remaining := subflows & existing)}
            self._recent.clear()
        if self._keep_until is None:
            self._keep_until = samples.time + UNDECIDED_SECONDS
        self.keeps_unrequired = self.keeps_unrequired and samples.time < self._keep_until

    def required_actions(self, token: int, treatments: Mapping[FourTuple, Treatment], rule: str) -> list[SetBackup]:
        """Return the actions that set and clear the flags of a connection as *treatments* of *rule* require."""
        actions = []
        for four_tuple, treatment in treatments.items():
            flag = self._set_flags.get(four_tuple)
            backup = flag is not None and flag.token == token
            if backup:
                self.unrequired.discard(four_tuple)
                self._set_flags[four_tuple] = SetBackup(token, four_tuple, False, rule)
            if treatment.backup is not backup and not (treatment.backup and token in self._refusals):
                actions.append(SetBackup(token, four_tuple, treatment.backup, rule))
        return actions

    def clearing_actions(self, sockets: Sockets) -> list[SetBackup]:
        """Return the actions that clear unrequired flags of existing sockets."""
        return [] if self.keeps_unrequired else [self._set_flags[each] for each in self.unrequired if each in sockets]

    def record_done(self, action: SetBackup) -> None:
        self._forget(action.four_tuple)
        if action.backup:
            self._set_flags[action.four_tuple] = action._replace(backup=False)
            self._recent.add(action.four_tuple)

    def record_refused(self, action: SetBackup) -> None:
        """Note that the kernel refused *action*; the flag is then set on no other subflow of the connection."""
        if action.backup:
            self._refusals.setdefault(action.token, set()).add(action.four_tuple)
            self._recent.add(action.four_tuple)
        else:
            self._forget(action.four_tuple)

    def release_actions(self) -> Sequence[SetBackup]:
        """Return the actions that make all subflows regular again when the daemon stops."""
        return list(self._set_flags.values())

    def _forget(self, four_tuple: FourTuple) -> None:
        self._set_flags.pop(four_tuple, None)
        self.unrequired.discard(four_tuple)


@dataclass(slots=True, eq=False)
class _SteeredSubflow:
    """The last sample of one steered subflow."""

    four_tuple: FourTuple
    path: str
    present: bool | None = None  # whether the subflow has a socket; None before its first sample or the first sweep
    delivered: int = 0


@dataclass(slots=True, eq=False)
class _SteeredConnection:
    """One connection that one rule steers."""

    rule: str
    steer: Steer
    mode: Mode
    subflows: tuple[_SteeredSubflow, ...] = ()
    treatments: dict[FourTuple, Treatment] = field(default_factory=dict)
    sample_count: int = 0  # number of samples since the subflows changed
    last_sampled: float = 0.0
    urgent_until: float = float("-inf")
    is_quiet: bool = False  # whether nothing changes until data flow again
    skipped: list[tuple[str, KernelSubflow]] = field(default_factory=list)  # last sample, if not yet passed to ``mode``

    def set_subflows(self, path_of: Mapping[FourTuple, str]) -> bool:
        """Set the steered subflows and their paths; return whether they changed."""
        if {each.four_tuple: each.path for each in self.subflows} == path_of:
            return False
        before = {(each.four_tuple, each.path): each for each in self.subflows}
        self.subflows = tuple([before.get(each) or _SteeredSubflow(*each) for each in path_of.items()])
        self.treatments = {each: treatment for each, treatment in self.treatments.items() if each in path_of}
        self.restart()
        return True

    def restart(self) -> None:
        """Restart the count of samples, because the policy or the steered subflows changed."""
        self.sample_count, self.is_quiet = 0, False

    def record_quiet(self, sockets: Sockets, now: float) -> bool:
        """Record a sample that changes nothing. If it needs :meth:`observe`, return False and record nothing."""
        limit = MIN_URGENT_RATE / 8 * (now - self.last_sampled)
        for subflow in self.subflows:
            socket = sockets.get(subflow.four_tuple)
            if socket is None or socket.tcp.not_sent or socket.tcp.sacked:
                return False
            growth = socket.bytes_acked - subflow.delivered
            if growth > limit or (growth <= 0 and socket.tcp.unacked):
                return False
        self.skipped = [(subflow.path, sockets[subflow.four_tuple]) for subflow in self.subflows]
        for subflow, (_, socket) in zip(self.subflows, self.skipped, strict=True):
            subflow.delivered = socket.bytes_acked
        self.last_sampled = now
        self.sample_count += 1
        return True

    def observe(self, samples: Samples, loads: WeakValueDictionary[tuple[str, bytes], ClientLoad]) -> None:
        if self.skipped:
            self.mode.observe(self.last_sampled, self.skipped, {})
            self.skipped = []
        sockets: list[tuple[str, KernelSubflow]] = []
        has_traffic = False
        for subflow in self.subflows:
            socket = samples.sockets.get(subflow.four_tuple)
            if socket is None:
                subflow.present = False
                continue
            growth = socket.delivered - subflow.delivered if subflow.present else 0
            is_fast = 8 * growth > MIN_URGENT_RATE * (socket.read - self.last_sampled)
            has_traffic = has_traffic or socket.tcp.not_sent > 0 or is_fast
            subflow.delivered, subflow.present = socket.delivered, True
            sockets.append((subflow.path, socket))
        # Loads are weakly referenced: a load exists as long as a connection's mode keeps it.
        loads_by_path = {path: loads.setdefault((path, each.four_tuple.remote), ClientLoad()) for path, each in sockets}
        self.treatments = self.mode.observe(samples.time, sockets, loads_by_path)
        self.last_sampled = min([each.read for _, each in sockets], default=samples.time)
        self.sample_count += 1
        if has_traffic:
            self.urgent_until = self.last_sampled + URGENT_SECONDS
        is_settled = self.last_sampled >= self.urgent_until + SETTLED_SECONDS
        self.is_quiet = not has_traffic and len(sockets) == len(self.subflows) and is_settled

    @property
    def is_urgent(self) -> bool:
        return self.sample_count < FIRST_SAMPLES or self.last_sampled < self.urgent_until


class SteeringStage(Stage):
    interval = period = 0.2

    def __init__(self) -> None:
        self._connections: dict[int, _SteeredConnection] = {}
        self._sampled = SampledSubflows()
        self._urgent: set[int] = set()
        self.flags = BackupFlags()
        self._client_loads: WeakValueDictionary[tuple[str, bytes], ClientLoad] = WeakValueDictionary()
        """By path and client address."""

    def set_policy(self, policy: Policy) -> None:
        """Adopt *policy*, which is now in force. Connections under the same mode keep their state, e.g. a fail-over."""
        for connection in self._connections.values():
            connection.restart()
        self._urgent |= self._connections.keys()

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Return *verdicts* with the caps that balance loads and the reasons for steering."""
        token = connection.token
        rule, path_of = find_steering(verdicts)
        if rule is None or rule.steer is None:
            self.forget(token)
            return verdicts
        steered = self._connections.get(token)
        if steered is None or steered.steer != rule.steer:
            self.forget(token)
            steered = self._connections[token] = _SteeredConnection(rule.name, rule.steer, rule.steer.create_mode())
        steered.rule = rule.name  # another policy may have the same mode under another name
        before = steered.subflows
        if steered.set_subflows(path_of):
            self._stop_sampling(token, before)
            self._sampled |= dict.fromkeys(path_of, token)
            self._urgent.add(token)
        return tuple([self._apply_to(each, rule, token, steered.treatments) for each in verdicts])

    def _apply_to(self, verdict: Verdict, rule: Rule, token: int, treatments: Mapping[FourTuple, Treatment]) -> Verdict:
        if verdict.steer is not rule or rule.steer is None or verdict.direction is not Direction.DOWN:
            return verdict
        treatment = treatments.get(verdict.four_tuple)
        sentence = f"steered {rule.steer.mode} by rule {rule.name}" + (f": {treatment.reason}" if treatment else "")
        verdict = verdict._replace(reason=add_sentence(verdict.reason, sentence))
        if treatment is None or treatment.rate is None or not self.is_applied:
            return verdict
        cap = verdict.throttle
        # The tighter cap applies. A shared cap always stays: in its own class, the connection would escape that cap.
        if cap is not None and (cap.share is not Share.CONNECTION or cap.ceil <= treatment.rate):
            return verdict
        throttle = Throttle(rate=treatment.rate, share=Share.CONNECTION)
        scope = ScopeKey(rule.name, Share.CONNECTION, (token, str(verdict.steer_path)))
        return verdict._replace(rule=rule, scope=scope, throttle=throttle)

    def forget(self, token: int) -> None:
        steered = self._connections.pop(token, None)
        if steered is not None:
            steered.mode.leave()
            self._urgent.discard(token)
            self._stop_sampling(token, steered.subflows)

    def _stop_sampling(self, token: int, subflows: Collection[_SteeredSubflow]) -> None:
        self._sampled.remove(token, [each.four_tuple for each in subflows])
        for each in subflows:
            self.flags.note_unrequired(each.four_tuple)

    def watched(self) -> Set[FourTuple]:
        """Return all subflows that are steered or have an unrequired flag."""
        unrequired = self.flags.unrequired
        return self._sampled.keys() | unrequired if unrequired else self._sampled.keys()

    def urgent(self) -> Set[FourTuple]:
        """Return the subflows of connections that are new or carry data, and subflows whose flag must be cleared."""
        subflows = set(() if self.flags.keeps_unrequired else self.flags.unrequired)
        for token in self._urgent:
            subflows.update([each.four_tuple for each in self._connections[token].subflows])
        return subflows

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        sockets, urgent = samples.sockets, self._urgent
        changed: list[int] = []
        actions: list[Action] = []
        self.flags.begin_samples(samples)
        for number, token in enumerate(self._sampled.tokens(samples, self._connections), 1):
            if not number % SLICE:
                yield Outcome(changed, actions)
                changed, actions = [], []
            connection = self._connections.get(token)
            if connection is None:
                continue  # the connection ended between two slices
            if connection.is_quiet and connection.record_quiet(sockets, samples.time):
                if not connection.is_urgent:
                    urgent.discard(token)
                continue
            may_exist = [each.four_tuple for each in connection.subflows if each.present is not False]
            if not samples.complete and any(each not in sockets for each in may_exist):
                continue  # these are partial samples, without a subflow that probably exists
            before = connection.treatments
            connection.observe(samples, self._client_loads)
            (urgent.add if connection.is_urgent else urgent.discard)(token)
            if before != connection.treatments:
                changed.append(token)
            if connection.steer.mode_class.sets_backup and self.is_applied:
                required = self.flags.required_actions(token, connection.treatments, connection.rule)
                connection.is_quiet = connection.is_quiet and not required
                actions += required
        for flag in self.flags.clearing_actions(sockets):
            connection = self._connections.get(flag.token)
            if connection is None or connection.sample_count:  # otherwise its first sample may still require the flag
                actions.append(flag)
        yield Outcome(changed, actions)

    def record_done(self, action: SetBackup) -> None:
        self.flags.record_done(action)
        if self._sampled.get(action.four_tuple) != action.token:
            self.flags.note_unrequired(action.four_tuple)  # the subflow is no longer steered

    def adopt(self, subflows: Iterable[KernelSubflow]) -> None:
        """Take over the flags that an earlier daemon left. Flags that no rule requires are cleared later."""
        self.flags.adopt(subflows)
        for connection in self._connections.values():
            connection.restart()


def find_steering(verdicts: tuple[Verdict, ...]) -> tuple[Rule | None, dict[FourTuple, str]]:
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
