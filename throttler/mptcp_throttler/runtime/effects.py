"""Carries out what stages want done: logs it, or sets backup flags through the path manager."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.mptcp.model import Connection, KernelSubflow
from mptcp_throttler.runtime.logs import TOLD, about
from mptcp_throttler.runtime.path_manager import UserspacePathManager
from mptcp_throttler.stages.backup_flags import SetBackup
from mptcp_throttler.stages.budget import Reached
from mptcp_throttler.stages.guard import Relaxed, Resumed
from mptcp_throttler.stages.stage import Effect
from mptcp_throttler.stages.steering import SteeringStage
from mptcp_throttler.telemetry.chronicle import Chronicle
from mptcp_throttler.telemetry.minute import Minute

log = logging.getLogger(__name__)

MOST_REFUSALS: Final = 20
"""Lines in a minute on connections that cannot be steered: after a reload to a policy by order all of before are."""


class Effects:
    """One daemon's."""

    def __init__(
        self,
        path_manager: UserspacePathManager,
        steering: SteeringStage,
        chronicle: Chronicle,
        connections: Mapping[int, Connection],
    ) -> None:
        """*connections* is the tracker's live view by token."""
        self._chronicle = chronicle
        self._connections = connections
        self._path_manager = path_manager
        self._steering = steering
        self._refusals = Minute(MOST_REFUSALS)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Do *effects*; one that the kernel refuses is logged and does not keep the others from it."""
        for effect in effects:
            match effect:
                case Relaxed(token, rules, reason):
                    fields = TOLD | self._about(token, rules)
                    log.warning("connection %08x: caps relaxed: %s", token, reason, extra=fields)
                    self._chronicle.guard(time.time(), token, rules, f"relaxed: {reason}")
                case Resumed(token, rules):
                    log.info("connection %08x: caps are in force again", token, extra=self._about(token, rules))
                    self._chronicle.guard(time.time(), token, rules, "are in force again")
                case Reached(budget, client, sentence, rule):
                    whose = f"client {client}: " if client else ""
                    log.info("%s%s", whose, sentence, extra=about(client=client or None, rule=rule))
                    self._chronicle.budget(time.time(), budget, client, sentence)
                case SetBackup():
                    self._set_backup(effect)
                case _:
                    raise TypeError(f"nothing carries out {effect!r}")

    def adopt(self, subflows: Iterable[KernelSubflow]) -> None:
        """Take over the backup flags that a killed daemon left: those that no rule explains are taken back.

        Where none was killed that set any, somebody else did, whose they stay.
        """
        if self._path_manager.take_flags_over():
            self._steering.adopt(subflows)

    def release_flags(self) -> None:
        """Make all subflows regular again that were made backup."""
        self.carry_out(self._steering.release_all())

    def _set_backup(self, effect: SetBackup) -> None:
        try:
            self._path_manager.set_backup(effect.token, effect.four_tuple, effect.backup)
        except KernelError as error:
            # Of a flag that an earlier daemon left, no policy in force says that it is to be changed.
            if effect.rule is not None and self._refusals.has_room(time.time()):
                text = "%s; a connection from before the policy steered cannot be steered"
                log.warning(text, error, extra=self._about(effect.token, effect.rule))
            self._steering.refused(effect)
            return
        what = "backup" if effect.backup else "regular"
        log.debug("%s: %s", effect.four_tuple, what, extra=self._about(effect.token, effect.rule))
        self._chronicle.steering(time.time(), effect.token, effect.four_tuple, effect.rule, f"made {what}")
        self._steering.confirmed(effect)

    def _about(self, token: int, rule: str | tuple[str, ...] | None) -> dict[str, Any]:
        return about(self._connections.get(token), token=token, rule=rule)
