"""*load-balancing*: bytes are shared by weight. Pure.

The caps are shares of a measure. If data wait, the path that carries least for its weight sets the measure and the
others are capped. If nothing waits on an uncapped path, the measure is the sum of what the paths carry, and every path
is capped a little above its share. The kernel's scheduler gives idle paths data in proportion to their pacing rates,
which follow the caps. A small correction makes up for what the last ``KEPT_SECONDS`` lack. A path that gives next to
nothing takes no part, because it would slow the others down. A lost path drops out at once, and returns when the
window of the measure no longer includes the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from mptcp_common.fields import Name, between
from mptcp_throttler.steering.mode import KEPT_SECONDS, MIN_CAP, MIN_WINDOW, Action, Mode, PathLoad

WINDOW = 2.0
"""Seconds over which rates are taken. BBR's stop of 0.2 s every ten seconds (PROBE_RTT) must not change the measure."""
STEP_SECONDS, FIRST_AFTER = 0.5, 0.6
"""Seconds between two changes of the caps, and from the first sample to the first cap."""
HEADROOM = 1.03
"""Margin above a share, so that a path that could carry more shows it."""
USED = 0.7
"""A path that carries this fraction of its cap would carry more without it."""
ROOM = 1.35
"""Measure while nothing waits, as a multiple of what all paths carry."""
MAX_CORRECTION = 0.25
"""Fraction of a share."""
MIN_PART = 0.05
"""A path below this fraction of its baseline takes no part."""
SETTLED = 0.02
"""A cap stays if the new one differs by at most this fraction."""
MOST_WEIGHT: Final = 1000


class LoadBalancing(Mode):
    """Gives each path its share of the bytes."""

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
        )
    }

    def __init__(self, paths: Sequence[str], given: Mapping[str, Any]) -> None:
        super().__init__(paths, given)
        self._weights: dict[str, int] = given["weights"]
        self._caps: dict[str, int] = {}
        self._set_at = -inf
        self._began = inf
        self._slack = False
        """The paths carry all there is to send."""

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
        self._began = min(self._began, now)
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
            correction = max(-MAX_CORRECTION, min(MAX_CORRECTION, lacks))
            rate = max(MIN_CAP, round(measure * share[name] * (1 + correction)))
            before = self._caps.get(name)
            caps[name] = before if before is not None and abs(rate - before) <= SETTLED * before else rate
        return caps

    def _measure(self, part: Mapping[str, PathLoad], share: Mapping[str, float]) -> tuple[str | None, float]:
        """Return the uncapped path that sets the measure, None if all are capped; and the measure, bits/s."""
        rate = {name: path.rate(WINDOW) for name, path in part.items()}
        # A path held back by its cap could give more, so it does not set the measure.
        free = [name for name in part if rate[name] < USED * self._caps.get(name, inf)]
        waited_for = any(part[name].is_waited_for for name in free)
        self._slack = not waited_for if self._slack else all(part[name].idles for name in free)
        if self._slack:
            # The shorter window follows growth; the longer one ignores pauses.
            present = sum(path.rate(MIN_WINDOW) for path in part.values())
            return None, ROOM * max(present, sum(rate.values()))
        least = min(free or part, key=lambda name: rate[name] / share[name])
        return least, HEADROOM * rate[least] / share[least]
