"""*smallest-delay*: the kernel's own scheduler, without interference. Pure."""

from __future__ import annotations

from mptcp_throttler.steering.mode import Action, Mode


class SmallestDelay(Mode):
    """Does nothing."""

    names = ("smallest-delay",)
    meaning = "smallest-delay: the kernel's own scheduler, without interference"
    spreads = False

    def decide(self, now: float) -> None:
        del now

    def action(self, path: str) -> Action:
        return Action(False, None, path)
