"""Steering modes: which subflows of a connection are to be backup, and which capped to what, from how they do. Pure.

The modes are those of 3GPP ATSSS (TS 23.501, 5.32.8), each by the lightest means that works:

- *active-standby*: the standby's subflows are backup (RFC 8684, 3.3.8). The kernel's scheduler takes a backup subflow
  as soon as no other is usable. By itself it would leave it at the first sign of life from the active path, which
  then has all that it lost to send again, and nothing would arrive for seconds: so the two change places once the
  standby had to step in, and again when nothing has been outstanding on the active path for ``BACK_AFTER``.
- *priority-based*: the same, but a path is opened (its subflows made regular) once those before it are full: all have
  had data waiting for ``FULL_AFTER``. It is closed when for ``CLOSE_AFTER`` those before it could have carried all.
- *load-balancing*: the path with the least of its share sets the measure, the others are capped to theirs of it. What
  the last ``SHARE_WINDOW`` seconds lack is made good by shifting the measure a little. A path that gives next to
  nothing takes no part: it would slow the others down.

Times are on any one clock, in seconds, rates in bits/s. Samples may be 0.1 s or some seconds apart: a rate is taken
over its window, or over the last interval where that is longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, inf
from typing import NamedTuple

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Steer

RATE_WINDOW, MIN_WINDOW = 1.0, 0.5
"""Seconds."""
BALANCE_WINDOW = 2.0
"""Seconds. Longer: BBR stops for 0.2 s every ten seconds (PROBE_RTT), which is not to change who sets the measure."""
SHARE_WINDOW = 10.0
"""Seconds over which shares are to be right."""
FULL_AFTER, CLOSE_AFTER = 0.5, 1.0
"""Seconds."""
MIN_WAITING, MUCH_WAITING = 0.08, 0.5
"""Seconds that what waits takes to send; below it a path is not full."""
BUSY = 0.7
"""Part of the baseline."""
DEAD = 0.01
"""Part of what the standby gives, below which the active path gives nothing."""
BACK_AFTER, CHANGE_AFTER = 0.5, 1.5
"""Seconds with nothing outstanding on the active path; and for how long it then has time to give something."""
SPARE = 0.85
"""Part of the baseline: what a path is trusted to carry."""
MEMORY = 60.0
"""Seconds in which a baseline falls to 1/e."""
HEADROOM = 1.03
"""Above its share, so that a path which could carry more shows it."""
USED = 0.7
"""Part of its cap: what a path carries that would carry more without."""
CORRECTION, MAX_CORRECTION = 1.0, 0.25
"""Parts of a share."""
MIN_PART = 0.05
"""A path that gives less than this part of its baseline takes no part in balancing."""
MIN_CAP = 256_000
"""Bits/s."""
SETTLED = 0.02
"""Part of a cap. One that differs by less stays as it is."""
BALANCE_SECONDS, BALANCE_AFTER = 0.5, 0.6
"""Seconds between two changes of the caps, and from the first sample to the first cap."""


class SubflowSample(NamedTuple):
    """One active subflow at one moment."""

    four_tuple: FourTuple
    path: str
    delivered: int
    """Bytes that arrived, since its beginning."""
    not_sent: int
    """Bytes assigned and not sent."""
    unacked: int = 0
    """Segments sent and not acknowledged."""


class Action(NamedTuple):
    """What is to become of one subflow."""

    backup: bool
    rate: int | None
    """Cap, bits/s; None without."""
    reason: str


class _Path:
    """All subflows of one connection on one path."""

    __slots__ = ("_carried", "_delivered", "_marks", "baseline", "unacked", "waiting")

    def __init__(self) -> None:
        self._carried = 0
        self._delivered: dict[FourTuple, int] = {}
        self._marks: list[tuple[float, int]] = []
        """When, and what the path had carried then."""
        self.baseline = 0.0
        """What it once gave, bits/s."""
        self.waiting = 0
        """Bytes."""
        self.unacked = 0
        """Segments."""

    def observe(self, now: float, samples: Iterable[SubflowSample]) -> None:
        there = list(samples)
        for each in there:
            self._carried += max(0, each.delivered - self._delivered.get(each.four_tuple, each.delivered))
        self._delivered = {each.four_tuple: each.delivered for each in there}
        self.waiting = sum(each.not_sent for each in there)
        self.unacked = sum(each.unacked for each in there)
        before = self._marks[-1][0] if self._marks else now
        self._marks.append((now, self._carried))
        while len(self._marks) > 2 and self._marks[1][0] <= now - SHARE_WINDOW:
            del self._marks[0]
        self.baseline = max(self.rate(RATE_WINDOW), self.baseline * exp((before - now) / MEMORY))

    @property
    def present(self) -> bool:
        return bool(self._delivered)

    def _over(self, window: float) -> tuple[float, float]:
        """Return the seconds and the bytes of the last *window* seconds, or since the first sample.

        Where the window begins between two samples, what was carried between them is taken as spread evenly.
        """
        after = self._marks[-1]
        now, begin = after[0], after[0] - window
        for mark in reversed(self._marks):
            if mark[0] <= begin:
                part = (begin - mark[0]) / (after[0] - mark[0])
                return window, self._carried - mark[1] - part * (after[1] - mark[1])
            after = mark
        return now - after[0], self._carried - after[1]

    def carried(self, window: float) -> float:
        """Return the bytes of the last *window* seconds."""
        return self._over(window)[1]

    def rate(self, window: float) -> float:
        """Return the bits/s of the last *window* seconds."""
        seconds, octets = self._over(window)
        return 8 * octets / max(seconds, MIN_WINDOW)

    @property
    def full(self) -> bool:
        """More waits than is sent at once, by a path that gives about what it can, or much more by any."""
        rate = max(self.rate(RATE_WINDOW), MIN_CAP)
        seconds = MIN_WAITING if rate >= BUSY * self.baseline else MUCH_WAITING
        return self.present and 8 * self.waiting >= seconds * rate


class Steering:
    """Steers one connection."""

    __slots__ = ("_balanced", "_began", "_caps", "_changed", "_open", "_paths", "_since", "steer")

    def __init__(self, steer: Steer) -> None:
        self.steer = steer
        self._paths = {name: _Path() for name in steer.paths}
        self._open = 1
        """How many paths are; with active-standby 2 while the standby stands in."""
        self._since: float | None = None
        """Since when all that are open have been full, or one less has been enough."""
        self._caps: dict[str, int] = {}
        self._balanced = self._changed = float("-inf")
        self._began: float | None = None

    @property
    def at_rest(self) -> bool:
        """Nothing changes while no data flow."""
        return self._open == 1 and self._since is None and not self._caps

    def observe(self, now: float, samples: Sequence[SubflowSample]) -> dict[FourTuple, Action]:
        """Take samples of all active subflows on the paths steered among; return what is to become of each."""
        if self._began is None:
            self._began = now
        for name, path in self._paths.items():
            path.observe(now, [each for each in samples if each.path == name])
        if not self.steer.by_order:
            self._balance(now)
            return {
                each.four_tuple: Action(False, self._caps.get(each.path), self._share(each.path)) for each in samples
            }
        if self.steer.opens_when_full:
            self._open_or_close(now)
        else:
            self._fail_over(now)
        order = list(self.steer.paths)
        return {each.four_tuple: self._by_order(order.index(each.path)) for each in samples}

    def _by_order(self, place: int) -> Action:
        opened = place < self._open
        if not self.steer.opens_when_full:
            if self._open > 1:
                return Action(place == 0, None, "stands in" if place else "gives nothing")
            return Action(place > 0, None, "standby" if place else "active")
        if not opened:
            return Action(True, None, "in reserve")
        return Action(False, None, "the ones before are full" if place else "first")

    def _fail_over(self, now: float) -> None:
        active, standby = (self._paths[name] for name in self.steer.paths)
        if self._open == 1:
            gone = active.baseline > MIN_CAP and active.rate(MIN_WINDOW) < DEAD * standby.rate(MIN_WINDOW)
            if gone and now - self._changed >= CHANGE_AFTER:
                self._open, self._since = 2, None
        elif active.unacked or not active.present:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= BACK_AFTER:
            self._open, self._since, self._changed = 1, None, now

    def _open_or_close(self, now: float) -> None:
        paths = [self._paths[name] for name in self.steer.paths]
        opened, fewer = paths[: self._open], paths[: self._open - 1]
        total = sum(path.rate(RATE_WINDOW) for path in opened)
        if self._open < len(paths) and all(path.full or not path.present for path in opened):
            step, after = 1, FULL_AFTER
        elif fewer and total < SPARE * sum(path.baseline for path in fewer if path.present):
            step, after = -1, CLOSE_AFTER
        else:
            self._since = None
            return
        if self._since is None:
            self._since = now
        elif now - self._since >= after:
            self._open, self._since = self._open + step, None

    def _share(self, path: str) -> str:
        weights = dict(zip(self.steer.paths, self.steer.weights, strict=True))
        return f"{100 * weights[path] / sum(weights.values()):.0f} % of the bytes"

    def _balance(self, now: float) -> None:
        assert self._began is not None
        if now - self._began < BALANCE_AFTER or now - self._balanced < BALANCE_SECONDS:
            return
        self._balanced = now
        weights = dict(zip(self.steer.paths, self.steer.weights, strict=True))
        part = {
            name: path
            for name, path in self._paths.items()
            if path.present and path.rate(BALANCE_WINDOW) > MIN_PART * path.baseline
        }
        if len(part) < 2:
            self._caps = {}
            return
        total_weight = sum(weights[name] for name in part)
        share = {name: weights[name] / total_weight for name in part}
        # One that its cap holds back would give more; it sets no measure for the others.
        free = {name for name, path in part.items() if path.rate(BALANCE_WINDOW) < USED * self._caps.get(name, inf)}
        least = min(free or part, key=lambda name: part[name].rate(BALANCE_WINDOW) / share[name])
        measure = part[least].rate(BALANCE_WINDOW) / share[least]
        carried = {name: path.carried(SHARE_WINDOW) for name, path in part.items()}
        all_carried = sum(carried.values()) or 1
        wanted: dict[str, int] = {}
        for name in part:
            if name == least:
                continue
            lacks = (share[name] - carried[name] / all_carried) / share[name]
            correction = max(-MAX_CORRECTION, min(MAX_CORRECTION, CORRECTION * lacks))
            wanted[name] = max(MIN_CAP, round(measure * share[name] * HEADROOM * (1 + correction)))
        for name, rate in wanted.items():
            before = self._caps.get(name)
            if before is not None and abs(rate - before) <= SETTLED * before:
                wanted[name] = before
        self._caps = wanted
