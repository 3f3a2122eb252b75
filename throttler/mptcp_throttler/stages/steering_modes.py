"""Steering modes: which subflows of a connection are to be backup, and which capped to what, from how they do. Pure.

The modes are those of 3GPP ATSSS (TS 23.501, 5.32.8), each by the lightest means that works:

- *active-standby*: the standby's subflows are backup (RFC 8684, 3.3.8). The kernel's scheduler takes a backup subflow
  as soon as no other is usable. By itself it would leave it at the first sign of life from the active path, which
  then has all that it lost to send again, and nothing would arrive for seconds. So a path on which data have been
  outstanding for ``LOST_AFTER``, and none arrived, is lost: it is backup and the next one is regular, until nothing
  has been outstanding on it for ``BACK_AFTER``.
- *priority-based*: the same, but a path is opened (its subflows made regular) once those before it are full: all have
  had data waiting for ``FULL_AFTER``, of this connection or of all of its client's (``Crowd``). It is closed when for
  ``CLOSE_AFTER`` those before it could have carried all. What a lost path once gave does not count. The scheduler
  would give most to the path with the shortest queue, so the last path that is open is capped to the overflow: the cap
  grows while those before it are full, twofold until it was too much once, afterwards by what begins to wait, slowly
  at first; it stays while less and less waits, and falls to what they leave when they are not full and carry less than
  they did. It has none where the path itself gives no more, and only then a further one is opened.
- *load-balancing*: where data wait, the path with the least of its share sets the measure, and the others are capped
  to theirs of it. Where nothing waits on a path without a cap, the paths carry what there is to send, and the sum of
  that is the measure: every path is capped to a little more than its share of it. The kernel's scheduler gives idle
  paths data in proportion to their pacing rates, which follow the caps. What the last ``SHARE_WINDOW`` seconds lack is
  made good by shifting the measure a little. A path that gives next to nothing takes no part: it would slow the others
  down. One that is lost takes none at once, and again when the window of the measure has nothing of that time.

Times are on any one clock, in seconds, rates in bits/s. Samples may be 0.1 s or some seconds apart: a rate is taken
over its window, or over the last interval where that is longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, inf
from types import MappingProxyType
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
MORE_THAN_A_PIECE, SURELY_WAITING = 70_000, 200_000
"""Bytes. The scheduler hands out pieces of 64 KB: one alone says nothing, three say all."""
SURELY_FULL = 0.7
"""Seconds for which more than a piece waits at every sample."""
BUSY = 0.7
"""Part of the baseline."""
LOST_AFTER, LOST_ROUND_TRIPS = 0.55, 3
"""Seconds, and round trips, for which data are outstanding on a path and none arrives."""
BACK_AFTER = 0.5
"""Seconds with nothing outstanding on a path that was lost."""
SPARE = 0.85
"""Part of the baseline: what a path is trusted to carry."""
MEMORY = 60.0
"""Seconds in which a baseline falls to 1/e."""
HEADROOM = 1.03
"""Above its share, so that a path which could carry more shows it."""
USED = 0.7
"""Part of its cap: what a path carries that would carry more without."""
ROOM = 1.35
"""Multiple of what all paths carry, while nothing waits, that is allowed for."""
WAITING_SETTLES = 1.0
"""Seconds."""
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
FAST_SECONDS = 0.25
"""The same for the cap of a path that was just opened."""
FIRST_OVERFLOW = 0.5
"""Cap of a path that is opened, as a part of what those before it give."""
FAST_GROWTH, GROWTH, ACCELERATION = 2.0, 1.06, 1.5
"""Of the cap of the last path: as long as it never was too much; the first step after it was; and the power to which
each further step is raised, so that a noise changes it little and a demand that stays is met within seconds."""
FALL = 0.7
"""Part of its cap, or of its rate without one, to which the last path falls within ``BALANCE_SECONDS``."""
DRAINS, FAST_DRAINS = 0.05, 0.3
"""Part of what the paths before the last one give: where what waits on them becomes less by more than that, the cap of
the last one is enough; and while the cap grows fast."""
LEFT = 0.97
"""Part of what the paths before give: the last one has what exceeds it."""


class SubflowSample(NamedTuple):
    """One active subflow at one moment."""

    four_tuple: FourTuple
    path: str
    read: float
    """When it was so, monotonic seconds."""
    delivered: int
    """Bytes that arrived, since its beginning."""
    not_sent: int
    """Bytes assigned and not sent."""
    unacked: int = 0
    """Segments sent and not acknowledged."""
    rtt: float = 0.0
    """Seconds."""


class Action(NamedTuple):
    """What is to become of one subflow."""

    backup: bool
    rate: int | None
    """Cap, bits/s; None without."""
    reason: str


class Crowd:
    """What all steered connections of one client have on one path, together."""

    __slots__ = ("__weakref__", "rate", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        """Bytes."""
        self.rate = 0
        """Bits/s."""


class _Path:
    """All subflows of one connection on one path."""

    __slots__ = (
        "_alive",
        "_carried",
        "_crowd",
        "_delivered",
        "_emptied",
        "_empty_since",
        "_idled",
        "_marks",
        "_rtt",
        "_told",
        "_waited",
        "baseline",
        "lost",
        "read",
        "silent",
        "waiting",
    )

    def __init__(self) -> None:
        self._carried = 0
        self._delivered: dict[FourTuple, int] = {}
        self._marks: list[tuple[float, int]] = []
        """When, and what the path had carried then."""
        self.baseline = 0.0
        """What it once gave, bits/s."""
        self.waiting = 0
        """Bytes."""
        self._crowd, self._told = Crowd(), (0, 0)
        """And what of this connection is in it: bytes that wait, bits/s."""
        self._rtt = 0.0
        """Seconds."""
        self.read = 0.0
        """When its subflows were read last: in a sweep seconds before or after another path's."""
        self._alive = 0.0
        """When something arrived last, or nothing was outstanding."""
        self._empty_since: float | None = None
        """Since when nothing has been outstanding."""
        self._idled = self._waited = self._emptied = float("-inf")
        """When next to nothing waited last, when more than is sent at once, and when no more than a piece."""
        self.silent = float("-inf")
        """When it was last that what is outstanding did not arrive."""
        self.lost = False

    def observe(self, now: float, samples: Iterable[SubflowSample]) -> None:
        there = list(samples)
        read = self.read = max((each.read for each in there), default=now)
        carried = self._carried
        for each in there:
            self._carried += max(0, each.delivered - self._delivered.get(each.four_tuple, each.delivered))
        self._delivered = {each.four_tuple: each.delivered for each in there}
        self.waiting = sum(each.not_sent for each in there)
        outstanding = any(each.unacked for each in there)
        self._rtt = max((each.rtt for each in there), default=0.0)
        if not outstanding or self._carried > carried:
            self._alive = read
        if outstanding or not there:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = read
        before = self._marks[-1][0] if self._marks else read
        self._marks.append((read, self._carried))
        while len(self._marks) > 2 and self._marks[1][0] <= read - SHARE_WINDOW:
            del self._marks[0]
        rate = self.rate(RATE_WINDOW)
        self.baseline = max(rate, self.baseline * exp((before - read) / MEMORY))
        if self.gives_nothing:
            self.silent = now
        if self.waiting >= max(MORE_THAN_A_PIECE, min(MIN_WAITING * rate / 8, SURELY_WAITING)):
            self._waited = read
        else:
            self._idled = read
        if self.waiting < MORE_THAN_A_PIECE:
            self._emptied = read

    def tell(self, crowd: Crowd | None) -> None:
        """Have *crowd*, the one so far where that is None, know what this connection has now."""
        waiting, rate = self._told
        self._crowd.waiting -= waiting
        self._crowd.rate -= rate
        self._crowd = crowd or self._crowd
        flows = self.present and self._empty_since is None
        waiting, rate = self._told = (self.waiting, round(self.rate(RATE_WINDOW))) if flows else (0, 0)
        self._crowd.waiting += waiting
        self._crowd.rate += rate

    def leave(self) -> None:
        self._delivered = {}
        self.tell(None)

    @property
    def present(self) -> bool:
        return bool(self._delivered)

    @property
    def idles(self) -> bool:
        """Next to nothing has waited for a while."""
        return self.read - self._waited >= WAITING_SETTLES

    @property
    def is_waited_for(self) -> bool:
        """Data have waited for a while."""
        return self.read - self._idled >= WAITING_SETTLES

    @property
    def gives_nothing(self) -> bool:
        """What is outstanding does not arrive, though it did before."""
        silent = self.read - self._alive
        return self.present and self.baseline > MIN_CAP and silent >= max(LOST_AFTER, LOST_ROUND_TRIPS * self._rtt)

    @property
    def well_again(self) -> bool:
        """All arrived that was outstanding, or its subflow went."""
        return not self.present or (self._empty_since is not None and self.read - self._empty_since >= BACK_AFTER)

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
        """More waits than is sent at once, by a path that gives about what it can, or much more by any; of this
        connection, or of all that the client has there: each of many small downloads has little waiting."""
        if not self.present:
            return False
        crowd = self._crowd
        if crowd.waiting > self.waiting and crowd.waiting >= max(SURELY_WAITING, MIN_WAITING * crowd.rate / 8):
            return True
        # With a short round trip the kernel has no room for more.
        if self.read - self._emptied >= SURELY_FULL:
            return True
        rate = max(self.rate(RATE_WINDOW), MIN_CAP)
        seconds = MIN_WAITING if rate >= BUSY * self.baseline else MUCH_WAITING
        return 8 * self.waiting >= seconds * rate


class _Measure(NamedTuple):
    """What the caps of load-balancing are taken from."""

    least: str | None
    """The path that sets it and has no cap; None where all have one."""
    rate: float
    """Of which every path is allowed its share, bits/s."""


class Steering:
    """Steers one connection."""

    __slots__ = (
        "_balanced",
        "_began",
        "_caps",
        "_growth",
        "_open",
        "_paths",
        "_since",
        "_slack",
        "_unused",
        "_waiting",
        "steer",
    )

    def __init__(self, steer: Steer) -> None:
        self.steer = steer
        self._paths = {name: _Path() for name in steer.paths}
        self._open: tuple[str, ...] = ()
        """The paths whose subflows are regular, in their order."""
        self._since: float | None = None
        """Since when all that are open have been full, or one less has been enough."""
        self._caps: dict[str, int] = {}
        self._growth = FAST_GROWTH
        self._waiting = 0
        """Bytes that waited on the paths before the last one when its cap was set."""
        self._unused = False
        """Then the last path gave less than its cap."""
        self._balanced = float("-inf")
        self._began: float | None = None
        self._slack = False
        """Load-balancing: the paths carry what there is to send."""

    @property
    def at_rest(self) -> bool:
        """Nothing changes while no data flow."""
        return (
            self._since is None
            and not self._caps
            and len(self._open) < 2
            and not any(path.lost for path in self._paths.values())
        )

    def observe(
        self, now: float, samples: Sequence[SubflowSample], crowds: Mapping[str, Crowd] = MappingProxyType({})
    ) -> dict[FourTuple, Action]:
        """Take samples of all active subflows on the paths steered among; return what is to become of each.

        *crowds*: of each path the one that this connection is part of.
        """
        if self._began is None:
            self._began = now
        for name, path in self._paths.items():
            path.observe(now, [each for each in samples if each.path == name])
            path.tell(crowds.get(name))
        if not self.steer.by_order:
            self._leave_out(now)
            self._balance(now)
            return {
                each.four_tuple: Action(False, self._caps.get(each.path), self._share(each.path)) for each in samples
            }
        self._order(now)
        return {each.four_tuple: self._by_order(each.path) for each in samples}

    def leave(self) -> None:
        """The connection has ended, or is steered no more."""
        for path in self._paths.values():
            path.leave()

    def _by_order(self, name: str) -> Action:
        waterfall = self.steer.opens_when_full
        if self._paths[name].lost:
            return Action(name not in self._open, None, "gives nothing")
        if name not in self._open:
            return Action(True, None, "in reserve" if waterfall else "standby")
        if name == self.steer.paths[0]:
            return Action(False, None, "first" if waterfall else "active")
        if any(self._paths[before].lost or not self._paths[before].present for before in self._before(name)):
            return Action(False, None, "stands in")
        return Action(False, self._caps.get(name), "the ones before are full")

    def _before(self, name: str) -> tuple[str, ...]:
        return self.steer.paths[: self.steer.paths.index(name)]

    def _order(self, now: float) -> None:
        """Set which paths are open: the first one that is not lost, and the next ones while those are full."""
        present = [name for name, path in self._paths.items() if path.present]
        for name, path in self._paths.items():
            if path.lost:
                path.lost = not path.well_again
            elif path.silent == now:
                # Without another one there is nothing to decide.
                path.lost = any(not self._paths[other].lost for other in present if other != name)
        usable = [name for name in present if not self._paths[name].lost] or present
        before = self._open
        self._open = tuple([name for name in usable if name in before or name == usable[0]])
        if not self.steer.opens_when_full:
            self._open = self._open[:1]
        elif self._open != before:
            self._since = None
        else:
            self._open_or_close(now, usable)
        if self.steer.opens_when_full:
            self._limit_last(now, before)

    def _open_or_close(self, now: float, usable: Sequence[str]) -> None:
        opened = [self._paths[name] for name in self._open]
        fewer = opened[:-1]
        closed = [name for name in usable if name not in self._open]
        total = sum(path.rate(RATE_WINDOW) for path in opened)
        # What the paths before once carried, in an upload, is nothing: by that alone none would be closed.
        trusted = max(MIN_CAP, SPARE * sum(path.baseline for path in fewer))
        if closed and all(path.full for path in opened) and self._open[-1] not in self._caps:
            wanted, after = {*self._open, closed[0]}, FULL_AFTER
        elif fewer and not any(path.full for path in fewer) and total < trusted:
            wanted, after = set(self._open[:-1]), CLOSE_AFTER
        else:
            self._since = None
            return
        if self._since is None:
            self._since = now
        elif now - self._since >= after:
            self._open, self._since = tuple([name for name in usable if name in wanted]), None

    def _limit_last(self, now: float, open_before: Sequence[str]) -> None:
        """Set the cap of the last path that is open, where the ones before it work."""
        last = self._open[-1] if self._open else ""
        before = [self._paths[name] for name in self._before(last)] if last else []
        if not before or any(path.lost or not path.present for path in before):
            self._caps = {}
            return
        given, waiting = sum(path.baseline for path in before), sum(path.waiting for path in before)
        fast = self._growth == FAST_GROWTH
        if last not in open_before:
            self._caps, self._growth = {last: max(MIN_CAP, round(FIRST_OVERFLOW * given))}, FAST_GROWTH
            self._balanced, self._unused, self._waiting = now, False, waiting
        elif now - self._balanced >= (FAST_SECONDS if fast else BALANCE_SECONDS):
            cap, rate = self._caps.get(last), self._paths[last].rate(MIN_WINDOW)
            steps = (now - self._balanced) / BALANCE_SECONDS
            grows = 8 * (waiting - self._waiting) / (now - self._balanced)
            self._balanced, self._waiting = now, waiting
            unused, self._unused = self._unused, cap is not None and rate < USED * cap
            # What comes from the origin is what all carry, and by how much more waits than before.
            first = sum(path.rate(MIN_WINDOW) for path in before)
            overflow = rate + first + grows - LEFT * given
            if not all(path.full for path in before):
                if first >= LEFT * given and cap is not None:
                    return  # they carry all they can, though nothing waits at this moment
                former = rate if cap is None else cap
                left = max(MIN_CAP, round(max(overflow, FALL**steps * former)))
                self._caps, self._growth = {last: left if cap is None else min(cap, left)}, GROWTH
            elif self._unused and unused:
                self._caps = {}
            elif cap is not None and not self._unused and grows > -given * (FAST_DRAINS if fast else DRAINS):
                self._caps = {last: round(max(self._growth * cap, min(overflow, FAST_GROWTH * cap)))}
                self._growth = min(FAST_GROWTH, self._growth**ACCELERATION)

    def _leave_out(self, now: float) -> None:
        """Set which paths balancing leaves out; what changes that is acted on at once."""
        for path in self._paths.values():
            lost = now - path.silent < BALANCE_WINDOW
            if lost != path.lost:
                path.lost, self._balanced = lost, float("-inf")

    def _share(self, path: str) -> str:
        if self._paths[path].lost:
            return "gave nothing: no share for now"
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
            if path.present and not path.lost and path.rate(BALANCE_WINDOW) > MIN_PART * path.baseline
        }
        if len(part) < 2:
            self._caps = {}
            return
        total_weight = sum(weights[name] for name in part)
        share = {name: weights[name] / total_weight for name in part}
        measured = self._measure(now, part, share)
        carried = {name: path.carried(SHARE_WINDOW) for name, path in part.items()}
        all_carried = sum(carried.values()) or 1
        wanted: dict[str, int] = {}
        for name in part:
            if name == measured.least:
                continue
            lacks = (share[name] - carried[name] / all_carried) / share[name]
            correction = max(-MAX_CORRECTION, min(MAX_CORRECTION, CORRECTION * lacks))
            wanted[name] = max(MIN_CAP, round(measured.rate * share[name] * (1 + correction)))
        for name, rate in wanted.items():
            before = self._caps.get(name)
            if before is not None and abs(rate - before) <= SETTLED * before:
                wanted[name] = before
        self._caps = wanted

    def _measure(self, now: float, part: Mapping[str, _Path], share: Mapping[str, float]) -> _Measure:
        rate = {name: path.rate(BALANCE_WINDOW) for name, path in part.items()}
        # One that its cap holds back would give more; it sets no measure for the others.
        free = [name for name in part if rate[name] < USED * self._caps.get(name, inf)]
        if self._slack:
            self._slack = not any(part[name].is_waited_for for name in free)
        else:
            self._slack = all(part[name].idles for name in free)
        if self._slack:
            # The shorter window follows what becomes more, the longer one does not follow what pauses.
            present = sum(path.rate(MIN_WINDOW) for path in part.values())
            return _Measure(None, ROOM * max(present, sum(rate.values())))
        least = min(free or part, key=lambda name: rate[name] / share[name])
        return _Measure(least, HEADROOM * rate[least] / share[least])
