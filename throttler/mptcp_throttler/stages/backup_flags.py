"""The backup flags that steering sets on subflows, and those to set or take back. Pure.

A flag counts as set once the runtime confirms it. Flags that no rule explains, because a rule ended, a path was left or
an earlier daemon was killed, are taken back. A full sweep forgets the flags of sockets that are gone.

If the kernel refuses one subflow, no other of its connection is tried: usually the connection is not under our path
manager. The kernel also refuses a subflow that just ended, so a refusal holds only as long as a refused subflow exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.stages.stage import Effect
from mptcp_throttler.steering.mode import Action

UNDECIDED_SECONDS = 5.0
"""How long after a start or a new policy flags wait for the decision on their connection."""


@dataclass(frozen=True, slots=True)
class SetBackup(Effect):
    """Make a subflow backup, or regular again (MP_PRIO, RFC 8684, 3.3.8). The runtime reports the result to
    ``SteeringStage.confirmed`` or ``SteeringStage.refused``."""

    token: int
    four_tuple: FourTuple
    backup: bool
    rule: str | None = None
    """The rule that wants it, or that set the flag; None if an earlier daemon set it."""


class BackupFlags:
    """The flags of one daemon."""

    def __init__(self) -> None:
        self._set: dict[FourTuple, int] = {}
        """Token of each subflow that we made backup."""
        self._rules: dict[FourTuple, str] = {}
        """The rule behind each flag, if known."""
        self._undecided: dict[int, list[FourTuple]] = {}
        """Flags from an earlier policy or daemon, by token."""
        self._undecided_until: float | None = None
        self.to_take_back: set[FourTuple] = set()
        """Flags that nothing explains, or that wait for the connection's first sample."""
        self._fresh: set[FourTuple] = set()
        """Subflows with news since the last sweep: they may be younger than it."""
        self._refused: dict[int, set[FourTuple]] = {}
        """Subflows whose flag the kernel refused to set, by token."""

    @property
    def unexplained(self) -> Collection[FourTuple]:
        """Subflows that must be sampled because of their flags."""
        undecided = {each for four_tuples in self._undecided.values() for each in four_tuples}
        return self.to_take_back | undecided if undecided else self.to_take_back

    def adopt(self, subflows: Iterable[KernelSubflow]) -> None:
        """Take over the flags of an earlier daemon."""
        self._set |= {each.four_tuple: each.token for each in subflows if each.made_backup}
        self.leave_undecided()

    def leave_undecided(self) -> None:
        """Keep all flags until their connection is decided, or ``UNDECIDED_SECONDS`` have passed."""
        self._undecided = {}
        self._undecided_until = None
        self.to_take_back.clear()
        for four_tuple, token in self._set.items():
            self._undecided.setdefault(token, []).append(four_tuple)

    def decide(self, token: int) -> None:
        """Note the decision on a connection; from now on its flags need an explanation."""
        self.to_take_back.update(self._set.keys() & self._undecided.pop(token, ()))

    def leave(self, four_tuple: FourTuple) -> None:
        """Note that the subflow is no longer steered, or differently."""
        if four_tuple in self._set:
            self.to_take_back.add(four_tuple)

    def begin(self, now: float) -> None:
        """Enforce ``UNDECIDED_SECONDS``; only samples bring the time."""
        if self._undecided_until is None:
            self._undecided_until = now + UNDECIDED_SECONDS
        elif now >= self._undecided_until:
            for token in list(self._undecided):
                self.decide(token)

    def forget_gone(self, sockets: Mapping[FourTuple, KernelSubflow]) -> None:
        """Forget the flags of subflows without a socket."""
        for four_tuple in [each for each in self._set if each not in sockets and each not in self._fresh]:
            self._unset(four_tuple)
        refused, self._refused = self._refused, {}
        for token, four_tuples in refused.items():
            if there := {each for each in four_tuples if each in sockets or each in self._fresh}:
                self._refused[token] = there
        self._fresh.clear()

    def wanted(self, token: int, actions: Mapping[FourTuple, Action], rule: str) -> list[SetBackup]:
        """Return the effects that bring the flags of a connection in line with *actions* of *rule*."""
        # No later call may come for a connection at rest, so decide its flags now.
        self.decide(token)
        effects = []
        for four_tuple, action in actions.items():
            backup = self._set.get(four_tuple) == token
            if backup:
                self.to_take_back.discard(four_tuple)
                self._rules[four_tuple] = rule
            if action.backup is not backup and not (action.backup and token in self._refused):
                effects.append(SetBackup(token, four_tuple, action.backup, rule))
        return effects

    def taken_back(
        self, sockets: Mapping[FourTuple, KernelSubflow], may_explain: Callable[[int], bool]
    ) -> list[SetBackup]:
        """Return the effects that take back unexplained flags of existing sockets, except if *may_explain* holds."""
        effects = []
        for four_tuple in self.to_take_back:
            token = self._set[four_tuple]
            if four_tuple in sockets and not may_explain(token):
                effects.append(self._regular(four_tuple, token))
        return effects

    def confirmed(self, effect: SetBackup, explained: bool) -> None:
        """Note that the flag was changed. *explained*: the subflow is still steered."""
        if not effect.backup:
            self._unset(effect.four_tuple)
            return
        self._set[effect.four_tuple] = effect.token
        if effect.rule is not None:
            self._rules[effect.four_tuple] = effect.rule
        self._fresh.add(effect.four_tuple)
        if not explained:
            self.to_take_back.add(effect.four_tuple)

    def refused(self, effect: SetBackup) -> None:
        """Note that the flag cannot be changed."""
        if not effect.backup:
            self._unset(effect.four_tuple)
            return
        self._fresh.add(effect.four_tuple)
        self._refused.setdefault(effect.token, set()).add(effect.four_tuple)

    def release_all(self) -> Sequence[SetBackup]:
        """Return the effects that take back all flags."""
        return [self._regular(four_tuple, token) for four_tuple, token in self._set.items()]

    def _regular(self, four_tuple: FourTuple, token: int) -> SetBackup:
        return SetBackup(token, four_tuple, False, self._rules.get(four_tuple))

    def _unset(self, four_tuple: FourTuple) -> None:
        self._set.pop(four_tuple, None)
        self._rules.pop(four_tuple, None)
        self.to_take_back.discard(four_tuple)
