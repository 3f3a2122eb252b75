"""*active-standby*: the standby path is used while the active one is unusable. Pure.

The standby's subflows are backup (RFC 8684, 3.3.8). The kernel's scheduler uses a backup subflow when no other is
usable. It would return at the first sign of life from the active path, which must then retransmit all its losses, so
that nothing would arrive for seconds. So a path is lost when outstanding data do not arrive for ``LOST_AFTER``. It is
backup and the next path regular until nothing is outstanding on it for ``BACK_AFTER``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from mptcp_common.fields import Name
from mptcp_throttler.steering.mode import Action, Mode, PathLoad


class ActiveStandby(Mode):
    """Uses one path at a time; base of modes that use paths in order."""

    names: ClassVar[tuple[str, ...]] = ("active-standby",)
    meaning = "active-standby: the standby path is used while the active one is unusable"
    keys: ClassVar = {
        "active": (
            Name | None,
            Field(None, description="With active-standby: the path that is used.", examples=["wifi"]),
        ),
        "standby": (
            Name | None,
            Field(None, description="With active-standby: the path in reserve.", examples=["lte"]),
        ),
    }
    sets_backup = True
    first, reserve = "active", "standby"
    """Names in reasons for the first path, and for paths that are not open."""

    def __init__(self, paths: Sequence[str], given: Mapping[str, Any]) -> None:
        super().__init__(paths, given)
        self._order = tuple(paths)
        self._open: tuple[str, ...] = ()
        """Paths with regular subflows, in order."""

    @classmethod
    def words(cls, given: Mapping[str, Any]) -> str:
        return f"{given['active']}, then {given['standby']}"

    @classmethod
    def part(cls, given: Mapping[str, Any], path: str, there: Sequence[str]) -> str:
        return "first" if path == there[0] else "backup"

    @property
    def at_rest(self) -> bool:
        return len(self._open) < 2 and not any(path.lost for path in self._paths.values())

    def decide(self, now: float) -> None:
        """Open the first path that is not lost, and open paths that the mode keeps (:meth:`follow`)."""
        present = [name for name, path in self._paths.items() if path.present]
        for name, path in self._paths.items():
            if path.lost:
                path.lost = not path.well_again
            elif path.silent == now:
                # With no other path there is nothing to decide.
                path.lost = any(not self._paths[other].lost for other in present if other != name)
        usable = [name for name in present if not self._paths[name].lost] or present
        before = self._open
        self._open = tuple([name for name in usable if name in before or name == usable[0]])
        self.follow(now, usable, before)

    def follow(self, now: float, usable: Sequence[str], before: tuple[str, ...]) -> None:
        """Open or close further *usable* paths; the paths *before* were open."""
        del now, usable, before
        self._open = self._open[:1]

    def action(self, path: str) -> Action:
        if self._paths[path].lost:
            return Action(path not in self._open, None, "gives nothing")
        if path not in self._open:
            return Action(True, None, self.reserve)
        if path == self._order[0]:
            return Action(False, None, self.first)
        if any(each.lost or not each.present for each in self._before(path)):
            return Action(False, None, "stands in")
        return self.overflow(path)

    def overflow(self, path: str) -> Action:
        """Return the action for an open *path* after others that all work."""
        del path
        return Action(False, None, "the ones before are full")

    def _before(self, name: str) -> list[PathLoad]:
        return [self._paths[each] for each in self._order[: self._order.index(name)]]
