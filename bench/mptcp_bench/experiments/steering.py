"""Steering modes on real downloads: what each path carries when the policy names a mode.

*active-standby*: Wi-Fi active, Ethernet standby; Wi-Fi's path swallows everything for a while. *priority-based*: Wi-Fi
first; the origin sends less than Wi-Fi carries for a while. *load-balancing*: 70/30 and 50/50; and 60/40 and 85/15
while the origin sends less than the paths carry. *smallest-delay*: beside a policy without rules. Rates are of what
arrives at the client.

The other part are outages of one path under each mode: ``experiments.steering_outages``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.recorder import Sample, mean_rate, rates
from mptcp_lab.testbed.services import wait_until

from .. import style
from ..statistics import mean_interval
from . import steering_cells, steering_outages
from .findings import Findings, Picture
from .options import choice, count, refused
from .two_paths import DEVICES, DownloadScene, slow_origin, two_paths, wifi_dropping

ETHERNET, WIFI, SLOW_ORIGIN = 100, 30, 15
"""Mbit/s."""
RTTS = ("20/20", "60/20")
"""Milliseconds, Ethernet and Wi-Fi."""
RUNS, QUICK_RUNS = 5, 1
OPTIONS = {
    "rtt": f"in modes: RTTs in ms, Ethernet/Wi-Fi, default {','.join(RTTS)}",
    "runs": f"of each, default {RUNS}",
    "kind": "in modes: which, separated by |, default all",
    **steering_cells.OPTIONS,
}
WARM, EVENT, AFTER = 6.0, 6.0, 10.0
"""Seconds before something happens, while it lasts, and afterwards."""
WINDOW = 10.0
"""Over which shares are taken."""


@contextmanager
def _slow(testbed: Testbed) -> Iterator[None]:
    with slow_origin(testbed, SLOW_ORIGIN):
        yield


PACED = {"load-balancing 60/40, paced": 20, "load-balancing 85/15, paced": 12}
"""Mbit/s that the origin sends all the time."""
KINDS = {
    "active-standby": ("{mode: active-standby, active: wifi, standby: ethernet}", wifi_dropping),
    "priority-based": ("{mode: priority-based, order: [wifi, ethernet]}", _slow),
    "load-balancing 70/30": ("{mode: load-balancing, weights: {ethernet: 70, wifi: 30}}", None),
    "load-balancing 50/50": ("{mode: load-balancing, weights: {ethernet: 50, wifi: 50}}", None),
    "load-balancing 60/40, paced": ("{mode: load-balancing, weights: {ethernet: 60, wifi: 40}}", None),
    "load-balancing 85/15, paced": ("{mode: load-balancing, weights: {ethernet: 85, wifi: 15}}", None),
    "smallest-delay": ("{mode: smallest-delay}", None),
    "no rule": (None, None),
}
QUICK_KINDS = ("active-standby", "priority-based", "load-balancing 70/30", "load-balancing 60/40, paced")


@dataclass(frozen=True, slots=True)
class Measured:
    """One download."""

    rtt: str
    kind: str
    event: float
    samples: tuple[Sample, ...]

    def share(self, device: str, start: float, end: float) -> float:
        """Return the part of all bytes that came over *device* between two times."""
        each = {name: mean_rate(self.samples, name, start, end) for name in DEVICES}
        return each[device] / max(1.0, sum(each.values()))

    def total(self, start: float, end: float) -> float:
        return sum(mean_rate(self.samples, device, start, end) for device in DEVICES)

    def findings(self) -> dict[str, float]:
        """Return what is to be shown of this kind, by name."""
        end = self.samples[-1].time
        if self.kind == "active-standby":
            return {
                "standby's share before": self.share("eth0", 1.0, self.event),
                "taken over after s": self._first("eth0", self.event, lambda rate: rate > 1e6),
                "back after s": self._first("wlan0", self.event + EVENT, lambda rate: rate > 0.8e6 * WIFI),
                "standby's share after": self.share("eth0", end - 2, end),
            }
        if self.kind == "priority-based":
            slow = self.event + EVENT
            return {
                "Mbit/s while Wi-Fi is not enough": self.total(2.5, self.event) / 1e6,
                "second's share while it is": self.share("eth0", slow - 3, slow),
                "Mbit/s while it is": self.total(slow - 3, slow) / 1e6,
                "Mbit/s afterwards": self.total(end - 3, end) / 1e6,
            }
        if self.kind.startswith("load-balancing"):
            wanted = int(self.kind.split()[1].split("/")[0]) / 100
            seconds = [self.share("eth0", second, second + 1) for second in range(3, int(end) - 1)]
            starts = [sample.time for sample in self.samples if sample.time + WINDOW < end]
            shares = [self.share("eth0", start, start + WINDOW) for start in starts]
            return {
                "Ethernet's share": self.share("eth0", 0, end),
                "worst over 10 s, points": max(100 * abs(share - wanted) for share in shares),
                "least share in 1 s": min(seconds),
                "greatest share in 1 s": max(seconds),
                "Mbit/s": self.total(2, end) / 1e6,
            }
        return {"Ethernet's share": self.share("eth0", 0, end), "Mbit/s": self.total(2, end) / 1e6}

    def _first(self, device: str, start: float, holds: Callable[[float], bool]) -> float:
        for rate in rates(self.samples):
            if rate.time > start + 0.1 and holds(rate.bits[device]):
                return rate.time - start
        return self.samples[-1].time - start


AIMS: dict[str, dict[str, tuple[float, float]]] = {
    "active-standby": {"standby's share before": (0, 0.001), "taken over after s": (0, 1), "back after s": (0, AFTER)},
    "priority-based": {
        "Mbit/s while Wi-Fi is not enough": (0.95 * (ETHERNET + WIFI), 200),
        "second's share while it is": (0, 0.02),
        "Mbit/s while it is": (0.9 * SLOW_ORIGIN, 200),
    },
    "load-balancing 70/30": {"worst over 10 s, points": (0, 5)},
    "load-balancing 50/50": {"worst over 10 s, points": (0, 5)},
    "load-balancing 60/40, paced": {"worst over 10 s, points": (0, 5), "Mbit/s": (0.9 * 20, 200)},
    "load-balancing 85/15, paced": {"worst over 10 s, points": (0, 5), "Mbit/s": (0.9 * 12, 200)},
    "smallest-delay": {"Mbit/s": (0.95 * (ETHERNET + WIFI), 200)},
}
"""Least and most of each finding's mean."""


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Run what *options* choose: every mode at each RTT, and outages."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize")
    runs = count(options, "runs", QUICK_RUNS if quick else RUNS)
    kinds = choice(options, "kind", KINDS, QUICK_KINDS if quick else None, by="|")
    parts, cells = choice(options, "part", steering_cells.PARTS), steering_cells.cells(options, quick)
    rtts = options.get("rtt", RTTS[0] if quick else ",".join(RTTS)).split(",")
    try:
        each = {rtt: tuple(float(word) for word in rtt.split("/", 1)) for rtt in rtts}
    except ValueError:
        raise refused(OPTIONS) from None
    if any(len(pair) != 2 for pair in each.values()):
        raise refused(OPTIONS)
    results: list[Findings] = []
    if "modes" in parts:
        results.append(_modes(console, seed, runs, each, kinds))
    if "outages" in parts:
        results.append(steering_outages.run(console, seed, cells, runs))
    return Findings(
        tuple(table for result in results for table in result.tables),
        {name: value for result in results for name, value in result.data.items()},
        tuple(failure for result in results for failure in result.failures),
        tuple(picture for result in results for picture in result.pictures),
    )


def _modes(
    console: Console, seed: int, runs: int, each: Mapping[str, tuple[float, ...]], kinds: Sequence[str]
) -> Findings:
    measured: list[Measured] = []
    for rtt, pair in each.items():
        with Testbed(paths(two_paths((ETHERNET, WIFI), pair)), seed=seed) as testbed:
            scene = Scene.built(testbed, steering_cells.POLICY % "[]")
            for kind in kinds:
                console.print(f"{rtt} ms, {kind}", style="dim", highlight=False)
                measured += [scene.run(rtt, kind) for _ in range(runs)]
    table, failures = judged(measured)
    data = {"runs": [{"rtt": m.rtt, "kind": m.kind, **m.findings()} for m in measured]}
    return Findings((table,), data, tuple(failures), (Picture("steering", lambda target: draw(target, measured)),))


class Scene(DownloadScene):
    """Downloads under a mode."""

    __slots__ = ()

    def run(self, rtt: str, kind: str) -> Measured:
        """Download under a mode, with what happens to it."""
        steer, happening = KINDS[kind]
        rules = "[]" if steer is None else f"[{{name: steered, steer: {steer}}}]"
        self.load(steering_cells.POLICY % rules)
        names = [] if steer is None else ["steered"]
        wait_until(lambda: self.throttler.status()["policy"]["rules"] == names, "the policy is in force")
        paced = slow_origin(self.testbed, PACED[kind]) if kind in PACED else nullcontext()
        with paced, self.downloading() as (_client, recorder):
            time.sleep(WARM)
            event = recorder.now
            with nullcontext() if happening is None else happening(self.testbed):
                time.sleep(max(0.0, event + EVENT - recorder.now))
            time.sleep(AFTER)
            samples = recorder.samples
        return Measured(rtt, kind, event, tuple(samples))


def judged(measured: Iterable[Measured]) -> tuple[Table, list[str]]:
    """Return the table, and which aims the means missed."""
    table = Table(title="Steering modes", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("RTT ms", "mode", "what", "mean"):
        table.add_column(title, justify="right" if title == "mean" else "left", no_wrap=True)
    found: dict[tuple[str, str, str], list[float]] = {}
    for one in measured:
        for what, value in one.findings().items():
            found.setdefault((one.rtt, one.kind, what), []).append(value)
    failures = []
    shown: tuple[str, str] | None = None
    for (rtt, kind, what), values in found.items():
        interval = mean_interval(values)
        half = "" if interval.half is None else f" ± {interval.half:.3f}"
        new = shown != (rtt, kind)
        table.add_row(rtt if new else "", kind if new else "", what, f"{interval.mean:.3f}{half}")
        shown = rtt, kind
        least, most = AIMS.get(kind, {}).get(what, (-1e12, 1e12))
        if not least <= interval.mean <= most:
            failures.append(f"{rtt} ms, {kind}: {what} {least:g} to {most:g}, was {interval.mean:.3f}")
    return table, failures


def draw(target: Path, measured: Sequence[Measured]) -> None:
    """Draw the first run of each mode at the first RTT."""
    there = {one.kind for one in measured}
    kinds = [kind for kind in KINDS if kind != "no rule" and kind in there]
    figure = style.new_figure(11, 2.0 * len(kinds) + 1)
    panels = figure.subplots(len(kinds), 1, sharex=True, squeeze=False)[:, 0]
    figure.subplots_adjust(left=0.065, right=0.985, top=1 - 1.1 / (2 * len(kinds) + 1), bottom=0.06, hspace=0.4)
    for axes, kind in zip(panels, kinds, strict=True):
        with suppress(StopIteration):
            chosen = next(m for m in measured if m.kind == kind and m.rtt == measured[0].rtt)
            series = rates(chosen.samples)
            for device, path in zip(DEVICES, (style.ETHERNET, style.WIFI), strict=True):
                style.draw_path(axes, [r.time for r in series], [r.bits[device] / 1e6 for r in series], path)
            if KINDS[kind][1] is not None:
                for moment in (chosen.event, chosen.event + EVENT):
                    axes.axvline(moment, color=style.INK, linestyle=style.DASHED, linewidth=1, zorder=4)
        axes.set_title(kind, loc="left", fontsize=10, color=style.INK)
        style.dress(axes, "seconds" if kind == kinds[-1] else "", "Mbit/s")
    panels[0].legend(loc="upper right", frameon=False)
    heading = (
        f"Ethernet {ETHERNET}, Wi-Fi {WIFI} Mbit/s, RTT {measured[0].rtt} ms; something happens between dashed lines"
    )
    style.heading(figure, "Steering modes", heading, left=0.065)
    style.save(figure, target)
