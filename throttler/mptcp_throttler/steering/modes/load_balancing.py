"""*load-balancing*: bytes are shared by weight. Pure.

Where data wait, the path with the least of its share sets the measure, and the others are capped to theirs of it. Where
nothing waits on a path without a cap, the paths carry what there is to send, and the sum of that is the measure: every
path is capped to a little more than its share of it. The kernel's scheduler gives idle paths data in proportion to
their pacing rates, which follow the caps. What the last ``KEPT_SECONDS`` lack is made good by shifting the measure a
little. A path that gives next to nothing takes no part: it would slow the others down. One that is lost takes none at
once, and again when the window of the measure has nothing of that time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from mptcp_common.fields import Name, between
from mptcp_throttler.steering.mode import KEPT_SECONDS, MIN_CAP, MIN_WINDOW, Action, Mode, PathLoad

WINDOW = 2.0
"""Seconds over which rates are taken: BBR stops for 0.2 s every ten seconds (PROBE_RTT), which is not to change who
sets the measure."""
STEP_SECONDS, FIRST_AFTER = 0.5, 0.6
"""Seconds between two changes of the caps, and from the first sample to the first cap."""
HEADROOM = 1.03
"""Above its share, so that a path which could carry more shows it."""
USED = 0.7
"""Part of its cap: what a path carries that would carry more without."""
ROOM = 1.35
"""Multiple of what all paths carry, while nothing waits, that is allowed for."""
CORRECTION, MAX_CORRECTION = 1.0, 0.25
"""Parts of a share."""
MIN_PART = 0.05
"""A path that gives less than this part of its baseline takes no part."""
SETTLED = 0.02
"""Part of a cap. One that differs by less stays as it is."""
MOST_WEIGHT: Final = 1000


class LoadBalancing(Mode):
    """Each path has its share of the bytes."""

    names = ("load-balancing",)
    meaning = "load-balancing: bytes are shared by weight"
    keys: ClassVar = {
        "weights": (
            dict[Name, Annotated[int, between(1, MOST_WEIGHT)]] | None,
            Field(
                None,
                description="With load-balancing: each path's share of the bytes; they need not add up to 100.",
                examples=[{"ethernet": 70, "wifi": 30}],
                json_schema_extra={"additionalProperties": {"type": "integer", "minimum": 1, "maximum": MOST_WEIGHT}},
            ),
        ),
    }

    def __init__(self, paths: Sequence[str], given: Mapping[str, Any]) -> None:
        super().__init__(paths, given)
        self._weights: dict[str, int] = given["weights"]
        self._caps: dict[str, int] = {}
        """Bits/s."""
        self._set_at = -inf
        self._began: float | None = None
        self._slack = False
        """The paths carry what there is to send."""

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        if len(given["weights"]) < 2:
            raise ValueError("weights has one path only; there is nothing to balance")

    @classmethod
    def words(cls, given: Mapping[str, Any]) -> str:
        return ", ".join(f"{path} {weight}" for path, weight in given["weights"].items())

    @classmethod
    def part(cls, given: Mapping[str, Any], path: str, there: Sequence[str]) -> str:
        return f"weight {given['weights'][path]}"

    @property
    def at_rest(self) -> bool:
        return not self._caps and not any(path.lost for path in self._paths.values())

    def action(self, path: str) -> Action:
        if self._paths[path].lost:
            return Action(False, None, "gave nothing: no share for now")
        share = 100 * self._weights[path] / sum(self._weights.values())
        return Action(False, self._caps.get(path), f"{share:.0f} % of the bytes")

    def decide(self, now: float) -> None:
        self._began = now if self._began is None else self._began
        for path in self._paths.values():
            lost = now - path.silent < WINDOW
            if lost != path.lost:
                path.lost, self._set_at = lost, -inf
        if now - self._began < FIRST_AFTER or now - self._set_at < STEP_SECONDS:
            return
        self._set_at = now
        part = {
            name: path
            for name, path in self._paths.items()
            if path.present and not path.lost and path.rate(WINDOW) > MIN_PART * path.baseline
        }
        self._caps = self._balanced(part) if len(part) > 1 else {}

    def _balanced(self, part: Mapping[str, PathLoad]) -> dict[str, int]:
        """Return the caps of the paths that take *part*."""
        weights = sum(self._weights[name] for name in part)
        share = {name: self._weights[name] / weights for name in part}
        least, measure = self._measure(part, share)
        carried = {name: path.carried(KEPT_SECONDS) for name, path in part.items()}
        all_carried = sum(carried.values()) or 1
        caps = {}
        for name in part:
            if name == least:
                continue
            lacks = (share[name] - carried[name] / all_carried) / share[name]
            correction = max(-MAX_CORRECTION, min(MAX_CORRECTION, CORRECTION * lacks))
            rate = max(MIN_CAP, round(measure * share[name] * (1 + correction)))
            before = self._caps.get(name)
            caps[name] = before if before is not None and abs(rate - before) <= SETTLED * before else rate
        return caps

    def _measure(self, part: Mapping[str, PathLoad], share: Mapping[str, float]) -> tuple[str | None, float]:
        """Return the path that sets the measure and has no cap, None if all have one; and the rate of which every path
        is allowed its share, bits/s."""
        rate = {name: path.rate(WINDOW) for name, path in part.items()}
        # One that its cap holds back would give more; it sets no measure for the others.
        free = [name for name in part if rate[name] < USED * self._caps.get(name, inf)]
        if self._slack:
            self._slack = not any(part[name].is_waited_for for name in free)
        else:
            self._slack = all(part[name].idles for name in free)
        if self._slack:
            # The shorter window follows what becomes more, the longer one does not follow what pauses.
            present = sum(path.rate(MIN_WINDOW) for path in part.values())
            return None, ROOM * max(present, sum(rate.values()))
        least = min(free or part, key=lambda name: rate[name] / share[name])
        return least, HEADROOM * rate[least] / share[least]
