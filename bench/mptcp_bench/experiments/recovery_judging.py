# SPDX-License-Identifier: GPL-2.0-or-later
"""The aims of one run of the experiment ``recovery``, for its samples and for the kernel's dumps. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mptcp_lab.testbed.recorder import Sample, greatest_rate, longest_gap, mean_rate
from mptcp_lab.testbed.system_state import (
    BPF,
    CLASSES,
    FILES,
    LINKS,
    PROCESSES,
    QDISCS,
    SYSCTLS,
    changed_sysctls,
)

from .aims import Aim
from .devices import DEVICES

BEFORE = 2.0
"""Seconds before the kill over which the steady rates are measured."""
GAP = 0.25
"""Most seconds that goodput may be below half of the steady rate: two and a half samples."""
WINDOW = 0.5
"""Length in seconds of every window, from the kill to the end, in which the cap must hold."""
RESTART = 10.0
"""Most seconds until the restarted throttler has the same caps again."""
KEEPER = 1.0
"""Most seconds from kill -9 until the sysctls are as before the start. The keeper needs milliseconds, and a
processor."""
LEAST, MOST = 0.95, 1.05
"""Least and most rate, as a share of a cap, a link, or the earlier goodput."""
USED = 0.9
"""Least rate, as a share of a cap. Senders use a cap to varying degrees; 0.94 was seen before anything was killed."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One run with one adapter. Times are seconds on the samples' clock; differences of dumps are lines of text."""

    backend: str
    samples: Sequence[Sample]
    """Samples of a download, from before the kill to ``end``."""
    killed: float
    restarted: float
    same: float
    """When the restarted throttler had the same caps on the same subflows; infinite if never."""
    ready: float
    """When the judged time after the restart begins, in which the caps must hold."""
    end: float
    capped: int
    """Number of subflows with a class before the kill."""
    made: Mapping[str, int]
    """Number of things of each kind that the throttler made or changed; see :func:`made`."""
    fail_open: float
    """Seconds from the kill until the sysctls were as before the start; infinite if never."""
    by_kill: Sequence[str]
    by_restart: Sequence[str]
    capped_at_stop: int
    at_stop: Sequence[str]
    after_stop: Sequence[str]
    exit_code: int | None
    capped_at_cleanup: int
    at_cleanup: Sequence[str]

    def dumps(self) -> list[tuple[str, Sequence[str]]]:
        """Return the differences of each dump, with a text that says when it was made."""
        return [
            ("dumps that changed by kill -9, less sysctls", self.by_kill),
            ("dumps that changed by the restart", self.by_restart),
            ("SIGTERM in mid-download: dumps that differ, less processes and files", self.at_stop),
            ("SIGTERM, after the download: dumps that differ", self.after_stop),
            ("cleanup after kill -9, in mid-download: dumps that differ", self.at_cleanup),
        ]

    def rates(self) -> dict[str, dict[str, float]]:
        """Return each device's mean rate in bits/s before the kill, without a throttler, and after the restart."""
        phases = {
            "before": (self.killed - BEFORE, self.killed),
            "dead": (self.killed, self.restarted),
            "after": (self.ready, self.end),
        }
        return {name: {d: mean_rate(self.samples, d, *span) for d in DEVICES} for name, span in phases.items()}


def made(before: Mapping[str, str], under: Mapping[str, str]) -> dict[str, int]:
    """Return, by kind, how many things differ between the state *before* and the state *under* a throttler."""

    def lines(begin: str, *names: str) -> int:
        new = (Counter(under[name].splitlines()) - Counter(before[name].splitlines()) for name in names)
        return sum(count for each in new for line, count in each.items() if line.startswith(begin))

    netfilter = [name for name in before if "iptables" in name or name.startswith(("ipset", "nft"))]
    interfaces = [set(re.findall(r"^\d+: ([^:@]+)", each[LINKS], re.MULTILINE)) for each in (before, under)]
    return {
        "sysctls changed": len(changed_sysctls(before[SYSCTLS], under[SYSCTLS])),
        "links made": len(interfaces[1] - interfaces[0]),
        "qdiscs made": lines("qdisc", QDISCS),
        "classes made": lines("class", CLASSES),
        "lines of iptables, ipset and nft": lines("", *netfilter),
        "programs, maps and links of BPF held": lines("", BPF),
        "processes started": lines("", PROCESSES),
        "files made": lines("", FILES),
    }


def judge(seen: Observed, cap: int, wifi: int) -> list[Aim]:
    """Return the aims for *cap* (Ethernet's) and *wifi* (Wi-Fi's rate), bits/s. Raises ValueError for few samples."""
    rates = seen.rates()
    total = sum(rates["before"].values())
    aims = [
        Aim("capped subflows before the kill", seen.capped, least=1),
        *(Aim(f"by the start: {kind}", number, least=1) for kind, number in seen.made.items()),
        *(Aim(when, len(texts), most=0) for when, texts in seen.dumps()),
        Aim("kill -9 to the sysctls as before the start", seen.fail_open, " s", most=KEEPER),
        Aim("restart to the same caps on the same subflows", seen.same - seen.restarted, " s", most=RESTART),
        Aim("Wi-Fi / its link, before", rates["before"]["wlan0"] / wifi, least=LEAST, most=MOST),
    ]
    aims += [Aim(f"Ethernet / its cap, {name}", r["eth0"] / cap, least=USED, most=MOST) for name, r in rates.items()]
    # Also judge the greatest rate, since the time between the end of a throttler and the next start is too short for a
    # mean.
    most = greatest_rate(seen.samples, "eth0", WINDOW, seen.killed, seen.end)
    after = sum(rates["after"].values()) / total if total else float("nan")
    gap = longest_gap(seen.samples, DEVICES, total / 2, seen.killed, seen.end)
    aims += [
        Aim(f"Ethernet / its cap, greatest over {WINDOW:g} s from the kill to the end", most / cap, most=MOST),
        Aim("goodput after / before", after, least=LEAST),
        Aim("longest gap in goodput", gap, " s", most=GAP),
        Aim("capped subflows at SIGTERM", seen.capped_at_stop, least=1),
        Aim("capped subflows at the kill -9 before cleanup", seen.capped_at_cleanup, least=1),
        Aim("exit code after SIGTERM", float("nan") if seen.exit_code is None else seen.exit_code, least=0, most=0),
    ]
    return [Aim(f"{seen.backend}: {a.what}", a.value, a.unit, a.least, a.most) for a in aims]
