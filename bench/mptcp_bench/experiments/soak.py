# SPDX-License-Identifier: GPL-2.0-or-later
"""Opens and closes tunnels under a cap for an hour: nothing may grow, and the throttler must miss no subflow.

The crowd of the experiment ``load`` has tunnels with two subflows and replaces some of them every second. The subflows
that the throttler knows are compared with the kernel's list of subflows, and its caps with the kernel's entries.
Memory, descriptors, classes, entries and BPF maps of the throttler and Squid are recorded over time. If the throttler
does not answer, the experiment fails.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptcp_common.units import parse_rate
from mptcp_lab.agent.processes import descendants
from mptcp_lab.agent.processors import tree_seconds
from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.services import Throttler
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE

from ..statistics import median
from .columns import Column, Row, Statistic, Table, Turn, columns_of, figure, of_cell
from .load_crowd import ADDRESSES, CAP, FULL, MAX_OPEN_RATE, Crowd, remote_ends, start_with, two_subflows, with_crowd
from .parameters import number, parameter, whole
from .relay_load import user_memory
from .scenario import Scenario

MAX_SAMPLES = 120
MIN_INTERVAL_SECONDS = 5.0
"""Minimum seconds between two samples."""
MIN_MINUTES = 3 * MIN_INTERVAL_SECONDS / 60
"""Minimum duration of the experiment in minutes. Fewer than three samples cannot show growth."""
MIN_AGE_SECONDS = 1.0
"""Age of a connection in seconds from which the throttler must know it and must have set its entries."""
CAPPED_PREFIX = ADDRESSES[0]
"""Prefix of the addresses on the capped path."""
MIN_RATE = 0.95
"""Minimum mean rate of the cap's class over all samples, as a share of the cap. While the cap repays an overshoot, its
class has half of the rate."""
MIN_OPEN_SHARE, MIN_REPLACED_SHARE = 0.95, 0.9
"""Minimum number of tunnels in any sample, and of replaced tunnels, each as a share of the wanted number."""
SIZES = dict.fromkeys(
    (
        "throttler's resident memory", "throttler's descriptors", "throttler's BPF maps", "set entries", "classes",
        "connections in status",
    ), 0.05,
) | dict.fromkeys(("proxy's resident memory", "proxy's descriptors"), 0.1)  # fmt: skip
"""Sizes that must not grow, each with its maximum growth, as a share, from the second third of the time to the last;
the first third is warm-up. Squid may grow more, because it manages its own memory pools."""
_ENTRY = re.compile(r"^add \S+ ([\d.]+),tcp:(\d+),\S+ .*skbprio (\S+)", re.MULTILINE)
_CLASS = re.compile(r"^class htb (\S+) .* ceil (\d+[KMG]?bit)\b", re.MULTILINE)
_MEMLOCK = re.compile(r"^memlock:\s*(\d+)", re.MULTILINE)
_TOKEN = re.compile(r"/([0-9a-f]+)\(id:")
Reading = Mapping[str, float]
"""The values of one sample by name: those of ``SIZES``, and

- *time*: seconds since the replacement of tunnels began;
- *open*, *opened*: number of established tunnels, and of tunnels opened since the start;
- *missed*: number of connections that ``status`` lacks, although the kernel listed two subflows before and after it;
- *phantom*: number of connections that ``status`` has, although the kernel listed them neither before nor after it;
- *checked*, *misclassified*: number of connections whose entries were compared, and of those with a subflow in a wrong
  class;
- *ceil*: rate of the cap's class in bits/s; NaN if the class does not exist."""


@dataclass(frozen=True, slots=True)
class Settings:
    minutes: float = parameter(f"duration in minutes, more than {MIN_MINUTES:g}", "60", number(MIN_MINUTES), quick="1")
    n: int = parameter("number of open tunnels", "1000", whole(), quick="50")
    churn: int = parameter("number of tunnels replaced per second", "50", whole(0), quick="5")
    squid: int = parameter("0: use a plain listener, which sends no data, instead of Squid", "1", whole(0, 1))

    def __str__(self) -> str:
        return f"{self.n:,} tunnels for {self.minutes:g} minutes"

    @property
    def interval(self) -> float:
        """Seconds between two samples."""
        return max(60 * self.minutes / MAX_SAMPLES, MIN_INTERVAL_SECONDS)

    @property
    def samples(self) -> int:
        return int(60 * self.minutes / self.interval)


@dataclass(frozen=True, slots=True)
class Soak:
    """The measurements of a run."""

    readings: tuple[Reading, ...] = figure("samples", digits=0)
    ended: int = figure("tunnels closed by the proxy", most=0, digits=0)
    cores: float = figure("throttler's processor share", unit=" cores", digits=3)
    remnants: tuple[str, ...] = figure("changed dumps after SIGTERM", most=0, digits=0)
    """Differences of the kernel's state after SIGTERM from that before the start, and an exit code other than 0."""


def growth(values: Sequence[float]) -> float:
    """Return the growth of the median from the second third of at least three *values* to the last, as a share."""
    third = len(values) // 3
    before, after = median(values[third : 2 * third]), median(values[2 * third :])
    # Divide by at least 1, because a median can be 0.
    return (after - before) / max(before, 1.0)


def measure(testbed: Testbed, turn: Turn[Settings]) -> Soak:
    cell = turn.cell
    crowd = Crowd.start(testbed, rate=max(MAX_OPEN_RATE, 3 * cell.churn), squid=bool(cell.squid))
    before = crowd.state()
    throttler = start_with(testbed["proxy"], FULL)
    pid = throttler.process.pid
    crowd.keep_open(cell.n)
    ended, seconds_before, begin = crowd.client.read().ended, tree_seconds(pid), time.monotonic()
    crowd.replace_per_second(cell.churn)
    readings = []
    for sample in range(1, cell.samples + 1):
        time.sleep(max(0.0, begin + sample * cell.interval - time.monotonic()))
        readings.append({"time": time.monotonic() - begin, **_reading(crowd, throttler)})
    cores = (tree_seconds(pid) - seconds_before) / (time.monotonic() - begin)
    crowd.replace_per_second(0)
    ended = crowd.client.read().ended - ended
    return Soak(tuple(readings), ended, cores, crowd.remnants(before, throttler))


def _reading(crowd: Crowd, throttler: Throttler) -> Reading:
    """Return a reading without its time. Raises TestbedError or ValueError if the throttler does not answer."""
    proxy, pid, server = crowd.testbed["proxy"], throttler.process.pid, crowd.server.pid
    before = two_subflows(crowd.list_subflows())
    time.sleep(MIN_AGE_SECONDS)
    status = throttler.status()
    saved = proxy.run(["ipset", "save"], timeout=60).stdout
    listing = crowd.list_subflows()
    unchanged = before & two_subflows(listing)
    classes = proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout
    cap, ceil = next(iter(ceilings(classes).items()), ("", math.nan))
    subflows = remote_ends(status)
    entries = {f"{address}:{port}": classid for address, port, classid in _ENTRY.findall(saved)}
    checked = unchanged & subflows.keys()
    counters = crowd.client.read()
    return {
        "open": counters.open,
        "opened": counters.opened,
        "missed": len(unchanged - subflows.keys()),
        "phantom": len(subflows.keys() - before - set(_TOKEN.findall(listing))),
        "checked": len(checked),
        "misclassified": misplaced(checked, subflows, entries, cap),
        "ceil": ceil,
        "throttler's resident memory": user_memory(pid, "Rss") / 1e6,
        "throttler's descriptors": descriptors(pid),
        "throttler's BPF maps": _bpf_bytes(pid),
        "set entries": len(entries),
        "classes": len(classes.splitlines()),
        "connections in status": len(status["connections"]),
        "proxy's resident memory": user_memory(server, "Rss") / 1e6,
        "proxy's descriptors": descriptors(server),
    }


def ceilings(classes: str) -> dict[str, float]:
    """Return the classes in tc(8)'s output that may be the crowd's cap, with their ceilings in bits/s.

    The cap's class has less than the cap while it repays an overshoot. Other classes have more, except the client's
    cap, which has 5 Mbit/s.
    """
    by_class = {name: float(parse_rate(rate)) for name, rate in _CLASS.findall(classes)}
    return {name: ceil for name, ceil in by_class.items() if 0.1 * CAP <= ceil <= CAP}


def misplaced(
    checked: Iterable[str], subflows: Mapping[str, Sequence[str]], entries: Mapping[str, str], cap: str
) -> int:
    """Return how many *checked* connections have a subflow whose class contradicts the policy.

    *checked* are tokens. *subflows* has the remote ends of each connection's subflows by token, and *entries* the class
    of each remote end. *cap* is the cap's class.
    """
    return sum(
        any((entries.get(end) == cap) is not end.startswith(CAPPED_PREFIX) for end in subflows[token])
        for token in checked
    )


def descriptors(pid: int) -> int:
    """Return the number of open files of process *pid* and its descendants."""
    count = 0
    for each in (pid, *descendants(pid)):
        with suppress(OSError):  # the process may have ended
            count += len(os.listdir(f"/proc/{each}/fd"))
    return count


def _bpf_bytes(pid: int) -> int:
    """Return the bytes of all BPF maps and programs that process *pid* holds, from /proc/PID/fdinfo, proc(5)."""
    octets = 0
    for each in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(OSError):  # the process may have closed the descriptor
            octets += sum(map(int, _MEMLOCK.findall(each.read_text())))
    return octets


def _sample_values(row: Row[Settings, Soak], name: str) -> list[float]:
    """Return the value *name* of all samples."""
    return [reading[name] for soak in row.measured for reading in soak.readings]


def _replacement_rates(row: Row[Settings, Soak]) -> list[float]:
    """Return the number of tunnels replaced per second between the first sample and the last."""
    ends = [(soak.readings[0], soak.readings[-1]) for soak in row.measured]
    return [(last["opened"] - first["opened"]) / (last["time"] - first["time"]) for first, last in ends]


def _column(heading: str, name: str, by: Statistic, **more: Any) -> Column[Settings, Soak]:
    """Return a column of the value *name* of all samples."""
    return Column(heading, lambda row: _sample_values(row, name), by, **{"digits": 0, **more})


def _growth(name: str, most: float) -> Column[Settings, Soak]:
    def values(row: Row[Settings, Soak]) -> list[float]:
        return [growth(_sample_values(row, name))] if row.measured else []

    return Column(f"growth of {name}", values, most=most, digits=3)


# Fewer connections are compared than tunnels exist, because some are replaced while status and kernel are read.
COLUMNS: Sequence[Column[Settings, Soak]] = (
    _column("open tunnels, minimum", "open", "least", least=of_cell(lambda cell: MIN_OPEN_SHARE * cell.n)),
    Column("tunnels replaced, /s", _replacement_rates, least=of_cell(lambda cell: MIN_REPLACED_SHARE * cell.churn)),
    _column("subflows: connections missed, maximum", "missed", "most", most=0),
    _column("subflows: phantom connections, maximum", "phantom", "most", most=0),
    _column("caps: connections compared, minimum", "checked", "least", least=of_cell(lambda cell: max(1, cell.n // 2))),
    _column("caps: misclassified connections, maximum", "misclassified", "most", most=0),
    _column(
        "caps: rate of the class / the cap's, mean", "ceil", "mean", least=MIN_RATE, most=1, scale=1 / CAP, digits=3
    ),
    *(_growth(name, most) for name, most in SIZES.items()),
    _column("throttler's resident memory, maximum", "throttler's resident memory", "most", unit=" MB"),
    *columns_of(Soak),
)
SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "htb", "tbf", "ipset", "iptables-legacy", "squid", "ss", "gcc"),
    cells=lambda chosen: [chosen],
    attempts=1,
    bed=lambda chosen, cells, seed: Testbed(with_crowd(paths((ETHERNET_RATE, WIFI_RATE)))),
    measure=measure,
    tables=[Table("Soak", COLUMNS, transposed=True)],
)
