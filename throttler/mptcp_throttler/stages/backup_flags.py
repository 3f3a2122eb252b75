"""The backup flags that steering sets on subflows: which are set, which are to be, which are to be taken back. Pure.

A flag counts as set once the runtime has said that it is. Flags that no rule explains, because a rule ended, a path
was left or an earlier daemon was killed, are taken back. Flags of sockets that are gone are forgotten at the next
full sweep.

Where the kernel refuses to make one subflow backup, no other of its connection is asked for: most often the connection
is not under our path manager. But the kernel says the same of a subflow that ended a moment ago. So the refusal holds
for as long as one that was refused is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.stages.stage import Effect
from mptcp_throttler.steering.mode import Action

UNDECIDED_SECONDS = 5.0
"""After a new policy, or a start, for which flags stay until their connection has been decided on."""


@dataclass(frozen=True, slots=True)
class SetBackup(Effect):
    """Make a subflow backup, or regular again (MP_PRIO, RFC 8684, 3.3.8).

    What became of it is reported by ``SteeringStage.confirmed`` or ``SteeringStage.refused``.
    """

    token: int
    four_tuple: FourTuple
    backup: bool
    rule: str | None = None
    """That wants it, or because of which the flag was set; None for one that an earlier daemon left."""


class BackupFlags:
    """The flags of one daemon."""

    def __init__(self) -> None:
        self._set: dict[FourTuple, int] = {}
        """The token of each subflow that we made backup."""
        self._rules: dict[FourTuple, str] = {}
        """The rule for whose sake each of them was, where that is known."""
        self._undecided: dict[int, list[FourTuple]] = {}
        """By token, those that an earlier policy explained, or an earlier daemon's."""
        self._undecided_until: float | None = None
        self.to_take_back: set[FourTuple] = set()
        """Those that nothing explains, or that wait for the first sample of a connection which may explain them."""
        self._fresh: set[FourTuple] = set()
        """Subflows of which something came since the last sweep: they may be younger than it."""
        self._refused: dict[int, set[FourTuple]] = {}
        """By token, the subflows whose flag the kernel would not set."""

    @property
    def unexplained(self) -> Collection[FourTuple]:
        """Subflows that have to be sampled for the sake of their flags."""
        undecided = {each for four_tuples in self._undecided.values() for each in four_tuples}
        return self.to_take_back | undecided if undecided else self.to_take_back

    def adopt(self, subflows: Iterable[KernelSubflow]) -> None:
        """Take over the flags that are set."""
        self._set |= {each.four_tuple: each.token for each in subflows if each.made_backup}
        self.leave_undecided()

    def leave_undecided(self) -> None:
        """Leave all flags as they are until a decision on each connection has come, or some seconds have passed."""
        self._undecided = {}
        self._undecided_until = None
        self.to_take_back.clear()
        for four_tuple, token in self._set.items():
            self._undecided.setdefault(token, []).append(four_tuple)

    def decide(self, token: int) -> None:
        """The connection has been decided on: what does not explain its flags now never will."""
        self.to_take_back.update(self._set.keys() & self._undecided.pop(token, ()))

    def leave(self, four_tuple: FourTuple) -> None:
        """The subflow is steered no more, or not as it was."""
        if four_tuple in self._set:
            self.to_take_back.add(four_tuple)

    def begin(self, now: float) -> None:
        """Wait no longer than is allowed; a clock runs only in samples."""
        if self._undecided_until is None:
            self._undecided_until = now + UNDECIDED_SECONDS
        elif now >= self._undecided_until:
            for token in list(self._undecided):
                self.decide(token)

    def forget_gone(self, sockets: Mapping[FourTuple, KernelSubflow]) -> None:
        """Forget the flags of all subflows that have no socket."""
        for four_tuple in [each for each in self._set if each not in sockets and each not in self._fresh]:
            self._unset(four_tuple)
        refused, self._refused = self._refused, {}
        for token, four_tuples in refused.items():
            if there := {each for each in four_tuples if each in sockets or each in self._fresh}:
                self._refused[token] = there
        self._fresh.clear()

    def wanted(self, token: int, actions: Mapping[FourTuple, Action], rule: str) -> list[SetBackup]:
        """Return what is to be done so that the flags of a connection are as *actions*, by *rule*, say."""
        # A connection at rest is asked about no more: what these actions explain must not wait for a later one.
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
        """Return what takes flags back that nothing explains, of sockets that are there.

        Connections that *may_explain* theirs keep them until they are sampled.
        """
        effects = []
        for four_tuple in self.to_take_back:
            token = self._set[four_tuple]
            if four_tuple in sockets and not may_explain(token):
                effects.append(self._regular(four_tuple, token))
        return effects

    def confirmed(self, effect: SetBackup, explained: bool) -> None:
        """The flag is set, or not any more. Whether the subflow is still steered says *explained*."""
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
        """The flag cannot be changed."""
        if not effect.backup:
            self._unset(effect.four_tuple)
            return
        self._fresh.add(effect.four_tuple)
        self._refused.setdefault(effect.token, set()).add(effect.four_tuple)

    def release_all(self) -> Sequence[SetBackup]:
        """Return what takes all flags back."""
        return [self._regular(four_tuple, token) for four_tuple, token in self._set.items()]

    def _regular(self, four_tuple: FourTuple, token: int) -> SetBackup:
        return SetBackup(token, four_tuple, False, self._rules.get(four_tuple))

    def _unset(self, four_tuple: FourTuple) -> None:
        self._set.pop(four_tuple, None)
        self._rules.pop(four_tuple, None)
        self.to_take_back.discard(four_tuple)
