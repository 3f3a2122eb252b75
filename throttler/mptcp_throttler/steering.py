# SPDX-License-Identifier: GPL-2.0-or-later
"""The steering modes of 3GPP ATSSS (TS 23.501, 5.32.8), each implemented by the simplest means that works. Pure.

*active-standby*: the subflows of the standby path are backup (RFC 8684, 3.3.8). The kernel's scheduler uses a backup
subflow when no other is usable. The kernel would return to the active path at that path's first packet. No data would
then arrive for seconds, while the path retransmits all its losses. So this mode treats a path as lost when outstanding
data do not arrive for ``LOST_SECONDS``. It makes the lost path backup and the next path regular, until no data have
been outstanding on the lost path for ``RETURN_SECONDS``.

*waterfall*: a path is used while all paths before it are full or absent. Lost paths are treated as above. A path opens
(its subflows become regular) when all paths before it had data waiting for ``OPEN_SECONDS``, of this connection or of
all connections of the client. It closes when the paths before it could have carried all data for ``CLOSE_SECONDS``; the
former rate of a lost path does not count. The scheduler would assign most data to the path with the shortest queue, so
the last open path is capped to the overflow (:class:`Overflow`). A further path opens only if the last open path has no
cap, which means that this path itself cannot carry more.

*load-balancing*: bytes are shared by weight. The caps are shares of a reference rate. If data wait, the path with the
lowest rate for its weight sets the reference rate, and the others are capped. If no data wait on an uncapped path, the
reference rate is the sum of the paths' rates, and every path is capped a little above its share. The kernel's scheduler
assigns data to idle paths in proportion to their pacing rates, which follow the caps. A small correction compensates
for deviations in the last ``MAX_WINDOW``. A path with almost no throughput is excluded, because it would slow the
others down. A lost path is excluded at once, and returns when the measurement window no longer includes the loss.

Times are seconds of any one clock, rates bits/s, volumes bytes. Samples may be 0.1 s or several seconds apart: a rate
is computed over its window, or over the last interval if that is longer. ``stages.steering`` gives a mode samples and
applies its treatments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import ClassVar, Final, NamedTuple

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow

RATE_WINDOW, MIN_WINDOW, MAX_WINDOW = 1.0, 0.5, 10.0  # seconds: usual, shortest and longest window of a rate
MIN_BACKLOG_SECONDS, SLOW_BACKLOG_SECONDS = 0.08, 0.5
"""A path is full if its waiting data take this long to send: the first near its baseline rate, the second below."""
MIN_BACKLOG, CERTAIN_BACKLOG = 70_000, 200_000  # bytes: one 64 KB chunk proves nothing, three are a backlog
BACKLOG_SECONDS = 0.7  # a path is full if more than one chunk has waited at every sample for this many seconds
BUSY_SHARE = 0.7  # a rate of at least this fraction of the baseline counts as near the baseline
LOST_SECONDS, LOST_ROUND_TRIPS = 0.55, 3
"""A path is lost if outstanding data do not arrive for these seconds, or these round trips if they take longer."""
RETURN_SECONDS = 0.5  # a lost path is usable again after this many seconds without outstanding data
BASELINE_DECAY_SECONDS = 60.0  # seconds in which a baseline falls to 1/e
SETTLE_SECONDS = 1.0  # a path is idle (or backlogged) after little (or much) data have waited for this long
MIN_CAP = 256_000  # minimum cap of a path in any mode, bits/s

OPEN_SECONDS, CLOSE_SECONDS = 0.5, 1.0  # how long the earlier paths must be full, or suffice, before the change
TRUSTED_SHARE = 0.85  # fraction of its baseline that a path is trusted to carry
USED_SHARE = 0.7  # a path that carries this fraction of its cap would carry more without it
STEP_SECONDS, FAST_STEP_SECONDS = 0.5, 0.25  # between two changes of a cap; the second while an overflow grows fast
FIRST_CAP_SHARE = 0.5  # cap of a newly opened path, as a fraction of the baselines of the paths before it
FAST_GROWTH, GROWTH, ACCELERATION = 2.0, 1.06, 1.5
"""Growth factor until a cap is too high for the first time; the next factor; exponent that yields further factors."""
MIN_FACTOR = 0.7  # per ``STEP_SECONDS``, a cap falls at most by this factor (a first cap: relative to the path's rate)
DRAIN_SHARE, FAST_DRAIN_SHARE = 0.05, 0.3
"""A cap suffices if the backlog drains faster than this share of the baselines (the second during fast growth)."""
OVERFLOW_SHARE = 0.97  # the last path gets the data above this fraction of the earlier paths' baselines

MEASURE_WINDOW = 2.0  # seconds over which rates are computed: BBR's pause of 0.2 s every 10 s must not matter
FIRST_CAP_SECONDS = 0.6  # seconds from the first sample to the first cap
HEADROOM = 1.03  # margin above a share, which reveals whether a path can carry more
SLACK_FACTOR = 1.35  # reference rate while no data wait, as a multiple of the rate of all paths
MAX_CORRECTION = 0.25  # fraction of a share
MIN_RATE_SHARE = 0.05  # a path below this fraction of its baseline is excluded
CAP_TOLERANCE = 0.02  # a cap stays if the new cap differs by at most this fraction


class Treatment(NamedTuple):
    """The treatment of one subflow."""

    backup: bool
    rate: int | None  # cap, bits/s; None for no cap
    reason: str


@dataclass(slots=True, weakref_slot=True, eq=False)
class ClientLoad:
    """The load of all steered connections of one client on one path."""

    waiting: int = 0  # bytes
    rate: int = 0  # bits/s


class PathLoad:
    """All subflows of one connection on one path."""

    def __init__(self) -> None:
        self._carried = 0
        self._delivered: dict[FourTuple, int] = {}
        self._history: list[tuple[float, int]] = []  # past times, each with the bytes carried until then
        self.baseline = 0.0  # rate that the path once had, bits/s
        self.waiting = 0
        self._client_load, self._own_load = ClientLoad(), (0, 0)  # own: this connection's part, (bytes, bits/s)
        self.read = 0.0  # When the path was last read. In a sweep, another path may be read seconds earlier or later.
        self._last_arrival = 0.0  # when data last arrived, or nothing was outstanding
        self._empty_since: float | None = None  # since when no data are outstanding; None while some are
        self._last_idle = self._last_backlog = self._last_empty = -inf
        """When little data waited last, when much data waited last, and when at most one chunk waited last."""
        self.last_silent = -inf  # when the path last carried nothing although data were outstanding
        self.lost = False

    def observe(self, now: float, samples: Sequence[KernelSubflow]) -> None:
        read = self.read = max((each.read for each in samples), default=now)
        previous, self._delivered = self._delivered, {each.four_tuple: each.delivered for each in samples}
        arrived = sum(max(0, octets - previous.get(each, octets)) for each, octets in self._delivered.items())
        self._carried += arrived
        self.waiting = sum(each.tcp.not_sent for each in samples)
        outstanding = any(each.tcp.unacked for each in samples)
        if not outstanding or arrived:
            self._last_arrival = read
        if outstanding or not samples:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = read
        elapsed = read - self._history[-1][0] if self._history else 0.0
        self._history.append((read, self._carried))
        while len(self._history) > 2 and self._history[1][0] <= read - MAX_WINDOW:
            del self._history[0]
        rate = self.rate(RATE_WINDOW)
        self.baseline = max(rate, self.baseline * exp(-elapsed / BASELINE_DECAY_SECONDS))
        # Outstanding data do not arrive on a path that used to work.
        lost_after = max(LOST_SECONDS, LOST_ROUND_TRIPS * max((each.tcp.rtt / 1e6 for each in samples), default=0.0))
        if samples and self.baseline > MIN_CAP and read - self._last_arrival >= lost_after:
            self.last_silent = now
        if self.waiting >= max(MIN_BACKLOG, min(MIN_BACKLOG_SECONDS * rate / 8, CERTAIN_BACKLOG)):
            self._last_backlog = read
        else:
            self._last_idle = read
        if self.waiting < MIN_BACKLOG:
            self._last_empty = read

    def update_client_load(self, client_load: ClientLoad | None) -> None:
        """Update this connection's part of *client_load* (None: of the load passed last)."""
        self._client_load.waiting -= self._own_load[0]
        self._client_load.rate -= self._own_load[1]
        self._client_load = client_load or self._client_load
        is_active = self.is_present and self._empty_since is None
        self._own_load = (self.waiting, round(self.rate(RATE_WINDOW))) if is_active else (0, 0)
        self._client_load.waiting += self._own_load[0]
        self._client_load.rate += self._own_load[1]

    def leave(self) -> None:
        self._delivered = {}
        self.update_client_load(None)

    @property
    def is_present(self) -> bool:
        return bool(self._delivered)

    @property
    def is_idle(self) -> bool:
        """Whether only little data have waited for some time."""
        return self.read - self._last_backlog >= SETTLE_SECONDS

    @property
    def is_backlogged(self) -> bool:
        """Whether much data have waited for some time."""
        return self.read - self._last_idle >= SETTLE_SECONDS

    @property
    def has_recovered(self) -> bool:
        """Whether all outstanding data arrived, or the subflows ended."""
        since = self._empty_since
        return not self.is_present or (since is not None and self.read - since >= RETURN_SECONDS)

    def carried_bytes(self, window: float) -> float:
        """Return the bytes of the last *window* seconds, or since the first sample; interpolate linearly."""
        later = self._history[-1]
        begin = later[0] - window
        for earlier in reversed(self._history):
            if earlier[0] <= begin:
                share = (begin - earlier[0]) / (later[0] - earlier[0])
                return self._carried - earlier[1] - share * (later[1] - earlier[1])
            later = earlier
        return self._carried - later[1]

    def rate(self, window: float) -> float:
        """Return the mean rate of the last *window* seconds, bits/s."""
        return 8 * self.carried_bytes(window) / max(min(window, self._history[-1][0] - self._history[0][0]), MIN_WINDOW)

    @property
    def is_full(self) -> bool:
        """Whether data wait on the path and its rate is near the baseline, or much data wait. All connections of the
        client count, because each of many small downloads has only little data waiting."""
        if not self.is_present:
            return False
        client_waiting = self._client_load.waiting
        client_backlog = max(CERTAIN_BACKLOG, MIN_BACKLOG_SECONDS * self._client_load.rate / 8)
        # If the round trip is short, the kernel never holds more than one chunk.
        if client_waiting > self.waiting and client_waiting >= client_backlog:
            return True
        if self.read - self._last_empty >= BACKLOG_SECONDS:
            return True
        rate = max(self.rate(RATE_WINDOW), MIN_CAP)
        seconds = MIN_BACKLOG_SECONDS if rate >= BUSY_SHARE * self.baseline else SLOW_BACKLOG_SECONDS
        return 8 * self.waiting >= seconds * rate


class Mode(ABC):
    """A steering mode, and how it steers one connection."""

    names: ClassVar[tuple[str, ...]]  # names in the policy; the first is 3GPP's
    meaning: ClassVar[str]  # for the description of the key ``mode``
    keys: ClassVar[tuple[str, ...]] = ()  # its keys under ``steer``
    spreads_data: ClassVar[bool] = True
    """False if the kernel's scheduler does everything, from a connection's first subflow on: no object is created."""
    sets_backup: ClassVar[bool] = False  # whether it uses the backup flag (RFC 8684, 3.3.8)

    def __init__(self, weights: Mapping[str, int]) -> None:
        """Steer among the paths of *weights*, the most preferred first."""
        self._paths = {name: PathLoad() for name in weights}

    def observe(
        self, now: float, samples: Sequence[tuple[str, KernelSubflow]], loads: Mapping[str, ClientLoad]
    ) -> dict[FourTuple, Treatment]:
        """Process samples of all active subflows on the steered paths; return their treatments. *loads*: by path."""
        for name, path in self._paths.items():
            path.observe(now, [each for name_of_path, each in samples if name_of_path == name])
            path.update_client_load(loads.get(name))
        self.decide(now)
        return {each.four_tuple: self.treatment(path) for path, each in samples}

    def leave(self) -> None:
        for path in self._paths.values():
            path.leave()

    @abstractmethod
    def decide(self, now: float) -> None:
        """Decide the state of each path."""

    @abstractmethod
    def treatment(self, path: str) -> Treatment:
        """Return the treatment of subflows on *path*."""


class ActiveStandby(Mode):
    """Uses one path at a time."""

    names: ClassVar[tuple[str, ...]] = ("active-standby",)
    meaning = "active-standby: the standby path is used while the active one is unusable"
    keys: ClassVar[tuple[str, ...]] = ("active", "standby")
    sets_backup = True
    first_reason, reserve_reason = "active", "standby"  # reasons for the first path, and for paths that are not open

    def __init__(self, weights: Mapping[str, int]) -> None:
        super().__init__(weights)
        self._order = tuple(weights)
        self._open: tuple[str, ...] = ()  # paths with regular subflows, in order

    def decide(self, now: float) -> None:
        """Open the first path that is not lost; :meth:`update_open_paths` decides about the others."""
        present = [name for name, path in self._paths.items() if path.is_present]
        for name, path in self._paths.items():
            if path.lost:
                path.lost = not path.has_recovered
            elif path.last_silent == now:
                # Without another path there is nothing to decide.
                path.lost = any(not self._paths[other].lost for other in present if other != name)
        usable = [name for name in present if not self._paths[name].lost] or present
        previous = self._open
        self._open = tuple([name for name in usable if name in previous or name == usable[0]])
        self.update_open_paths(now, usable, previous)

    def update_open_paths(self, now: float, usable: Sequence[str], previous: tuple[str, ...]) -> None:
        """Open or close further *usable* paths; the *previous* paths were open."""
        self._open = self._open[:1]

    def treatment(self, path: str) -> Treatment:
        if self._paths[path].lost:
            return Treatment(path not in self._open, None, "outstanding data do not arrive")
        if path not in self._open:
            return Treatment(True, None, self.reserve_reason)
        if path == self._order[0]:
            return Treatment(False, None, self.first_reason)
        if any(each.lost or not each.is_present for each in self._earlier_paths(path)):
            return Treatment(False, None, "replaces a lost or absent path")
        return Treatment(False, self.cap(path), "the paths before it are full")

    def cap(self, path: str) -> int | None:
        """Return the cap, bits/s, of an open *path* if all paths before it work."""
        return None

    def _earlier_paths(self, name: str) -> list[PathLoad]:
        return [self._paths[each] for each in self._order[: self._order.index(name)]]


@dataclass(slots=True)
class Overflow:
    """The cap of the last open path. While the paths before it are full, the cap grows: it doubles until it is too high
    for the first time, and then grows slowly at first, or as fast as the backlog requires. It stays while the backlog
    drains. When the other paths are not full and carry less than their baselines, it falls to the rate above these.
    It ends when the path itself cannot carry more."""

    cap: int | None = None
    _growth: float = FAST_GROWTH
    _set_at: float = -inf
    _waiting: int = 0  # bytes waiting on the paths before it at ``_set_at``
    _was_unused: bool = False  # whether the path carried less than its cap at ``_set_at``

    def begin(self, now: float, earlier: Sequence[PathLoad]) -> None:
        """Cap a newly opened path; the *earlier* paths are full."""
        self.cap = max(MIN_CAP, round(FIRST_CAP_SHARE * sum(each.baseline for each in earlier)))
        self._growth, self._set_at, self._was_unused = FAST_GROWTH, now, False
        self._waiting = sum(each.waiting for each in earlier)

    def adjust(self, now: float, path: PathLoad, earlier: Sequence[PathLoad]) -> None:
        """Set the cap of *path* from its load and that of the *earlier* paths."""
        is_fast = self._growth == FAST_GROWTH
        seconds = now - self._set_at
        if seconds < (FAST_STEP_SECONDS if is_fast else STEP_SECONDS):
            return
        baseline, waiting = sum(each.baseline for each in earlier), sum(each.waiting for each in earlier)
        carried, rate = sum(each.rate(MIN_WINDOW) for each in earlier), path.rate(MIN_WINDOW)
        growth = 8 * (waiting - self._waiting) / seconds
        # The origin's rate is the rate of all paths plus the growth of the backlog.
        needed = rate + carried + growth - OVERFLOW_SHARE * baseline
        was_unused, self._was_unused = self._was_unused, self.cap is not None and rate < USED_SHARE * self.cap
        self._set_at, self._waiting = now, waiting
        if not all(each.is_full for each in earlier):
            if self.cap is None or carried < OVERFLOW_SHARE * baseline:
                previous = rate if self.cap is None else self.cap
                remainder = max(MIN_CAP, round(max(needed, MIN_FACTOR ** (seconds / STEP_SECONDS) * previous)))
                self.cap = remainder if self.cap is None else min(self.cap, remainder)
                self._growth = GROWTH
        elif self._was_unused:
            self.cap = None if was_unused else self.cap
        elif self.cap is not None and growth > -baseline * (FAST_DRAIN_SHARE if is_fast else DRAIN_SHARE):
            self.cap = round(max(self._growth * self.cap, min(needed, FAST_GROWTH * self.cap)))
            self._growth = min(FAST_GROWTH, self._growth**ACCELERATION)


class Waterfall(ActiveStandby):
    """Opens a path when the paths before it are full."""

    names = ("priority-based", "waterfall")
    meaning = "waterfall, which 3GPP calls priority-based: a path is used while those before it are full or lost"
    keys = ("order",)
    first_reason, reserve_reason = "first", "in reserve"

    def __init__(self, weights: Mapping[str, int]) -> None:
        super().__init__(weights)
        self._change_began: float | None = None  # since when all open paths are full, or all but the last suffice
        self._overflow = Overflow()

    def update_open_paths(self, now: float, usable: Sequence[str], previous: tuple[str, ...]) -> None:
        if self._open != previous:
            self._change_began = None
        else:
            self._open_or_close(now, usable)
        last = self._open[-1] if self._open else self._order[0]
        earlier = self._earlier_paths(last)
        earlier_paths_work = bool(earlier) and all(path.is_present and not path.lost for path in earlier)
        if not earlier_paths_work or previous[-1:] != (last,):
            self._overflow.cap = None
        if earlier_paths_work and last not in previous:
            self._overflow.begin(now, earlier)
        elif earlier_paths_work:
            self._overflow.adjust(now, self._paths[last], earlier)

    def _open_or_close(self, now: float, usable: Sequence[str]) -> None:
        open_paths = [self._paths[name] for name in self._open]
        fewer_paths = open_paths[:-1]
        closed = [name for name in usable if name not in self._open]
        total = sum(path.rate(RATE_WINDOW) for path in open_paths)
        # During an upload the paths have no baseline: without ``MIN_CAP``, all of them would stay open.
        trusted = max(MIN_CAP, TRUSTED_SHARE * sum(path.baseline for path in fewer_paths))
        if closed and all(path.is_full for path in open_paths) and self._overflow.cap is None:
            next_open, seconds = {*self._open, closed[0]}, OPEN_SECONDS
        elif fewer_paths and not any(path.is_full for path in fewer_paths) and total < trusted:
            next_open, seconds = set(self._open[:-1]), CLOSE_SECONDS
        else:
            self._change_began = None
            return
        if self._change_began is None:
            self._change_began = now
        elif now - self._change_began >= seconds:
            self._open, self._change_began = tuple([name for name in usable if name in next_open]), None

    def cap(self, path: str) -> int | None:
        return self._overflow.cap if path == self._open[-1] else None


class LoadBalancing(Mode):
    """Gives each path its share of the bytes."""

    names = ("load-balancing",)
    meaning = "load-balancing: bytes are shared by weight"
    keys = ("weights",)

    def __init__(self, weights: Mapping[str, int]) -> None:
        super().__init__(weights)
        self._weights = weights
        self._caps: dict[str, int] = {}
        self._set_at = -inf
        self._first_decision = inf
        self._has_slack = False  # whether the paths carry all data that the proxy sends

    def treatment(self, path: str) -> Treatment:
        if self._paths[path].lost:
            return Treatment(False, None, "outstanding data did not arrive: no share for now")
        share = 100 * self._weights[path] / sum(self._weights.values())
        return Treatment(False, self._caps.get(path), f"{share:.0f} % of the bytes")

    def decide(self, now: float) -> None:
        self._first_decision = min(self._first_decision, now)
        for path in self._paths.values():
            lost = now - path.last_silent < MEASURE_WINDOW
            if lost != path.lost:
                path.lost, self._set_at = lost, -inf
        if now - self._first_decision < FIRST_CAP_SECONDS or now - self._set_at < STEP_SECONDS:
            return
        self._set_at = now
        participants = {
            name: path
            for name, path in self._paths.items()
            if path.is_present and not path.lost and path.rate(MEASURE_WINDOW) > MIN_RATE_SHARE * path.baseline
        }
        self._caps = self._balance(participants) if len(participants) > 1 else {}

    def _balance(self, participants: Mapping[str, PathLoad]) -> dict[str, int]:
        weights = sum(self._weights[name] for name in participants)
        shares = {name: self._weights[name] / weights for name in participants}
        slowest, reference_rate = self._slowest(participants, shares)
        carried = {name: path.carried_bytes(MAX_WINDOW) for name, path in participants.items()}
        total = sum(carried.values()) or 1
        caps = {}
        for name in participants:
            if name == slowest:
                continue
            deficit = (shares[name] - carried[name] / total) / shares[name]
            correction = max(-MAX_CORRECTION, min(MAX_CORRECTION, deficit))
            rate = max(MIN_CAP, round(reference_rate * shares[name] * (1 + correction)))
            previous = self._caps.get(name)
            caps[name] = previous if previous is not None and abs(rate - previous) <= CAP_TOLERANCE * previous else rate
        return caps

    def _slowest(self, participants: Mapping[str, PathLoad], shares: Mapping[str, float]) -> tuple[str | None, float]:
        """Return the uncapped path that sets the reference rate (None if all are capped), and that rate, bits/s."""
        rates = {name: path.rate(MEASURE_WINDOW) for name, path in participants.items()}
        # A path that its cap limits could carry more, so it does not set the reference rate.
        uncapped = [name for name in participants if rates[name] < USED_SHARE * self._caps.get(name, inf)]
        is_backlogged = any(participants[name].is_backlogged for name in uncapped)
        self._has_slack = not is_backlogged if self._has_slack else all(participants[name].is_idle for name in uncapped)
        if self._has_slack:
            # The shorter window follows growth; the longer one ignores pauses.
            total = sum(path.rate(MIN_WINDOW) for path in participants.values())
            return None, SLACK_FACTOR * max(total, sum(rates.values()))
        slowest = min(uncapped or participants, key=lambda name: rates[name] / shares[name])
        return slowest, HEADROOM * rates[slowest] / shares[slowest]


class SmallestDelay(Mode):
    """Leaves all decisions to the kernel's scheduler."""

    names = ("smallest-delay",)
    meaning = "smallest-delay: the kernel's own scheduler, without interference"
    spreads_data = False


MODES: Final[tuple[type[Mode], ...]] = (ActiveStandby, Waterfall, LoadBalancing, SmallestDelay)
BY_NAME: Final = {mode.names[0]: mode for mode in MODES} | {name: mode for mode in MODES for name in mode.names[1:]}
"""The modes, by 3GPP's names first, then by other names."""
