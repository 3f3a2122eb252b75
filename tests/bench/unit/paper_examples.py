# SPDX-License-Identifier: GPL-2.0-or-later
"""Draws results from a seed as an experiment would leave them, for tests of the paper's figures and report."""

from __future__ import annotations

import random
from dataclasses import replace

from mptcp_bench.paper.results import (
    Case,
    PaperResult,
    Reference,
    Run,
    Series,
    share,
)
from mptcp_bench.paper.summary import summarise
from mptcp_bench.result_file import JudgedClaim, Provenance
from mptcp_bench.statistics import percentile

INTERVAL = 0.1
PROVENANCE = Provenance(
    command="mptcp-bench run fig3 --seed 7",
    commit="0123456789abcdef0123456789abcdef01234567",
    kernel="6.18.44",
    processors=2,
    squid="5.7",
    python="3.11.2",
    seed=7,
    started="2026-01-02T03:04:05+00:00",
)
SWEPT = (60, 120, 180, 240, 360, 480, 720, 1440, 2880, 5760)
LINKS = {"ethernet": 94e6, "wifi": 25e6}


def run(draw: random.Random, case: Case, repetition: int, octets: float = 60e6, delay: float = 0.8) -> Run:
    """Draw one download: both paths reach their rates within a second; a cap is in force after *delay* seconds."""
    times: list[float] = []
    rates: dict[str, list[float]] = {path: [] for path in LINKS if case.path in (None, path)}
    waiting: list[float] = []
    received, time = 0.0, 0.0
    strength = {path: draw.uniform(0.93, 1.0) for path in rates}
    while received < octets:
        time += INTERVAL
        times.append(round(time, 3))
        for path, values in rates.items():
            rise = min(1.0, (time / (0.5 if path == "ethernet" else 1.2)) ** 2)
            noise = draw.gauss(1, 0.015 if path == "ethernet" else 0.1)
            rate = LINKS[path] * strength[path] * rise * noise
            if path in case.caps and time > delay:
                rate = min(rate, case.caps[path] * draw.gauss(1, 0.01))
            values.append(max(0.0, rate))
            received += values[-1] * INTERVAL / 8
        waiting.append(max(0.0, draw.gauss(9e4, 4e4)))
    totals = {path: sum(values) for path, values in rates.items()}
    numbers = {
        "goodput": 8 * received * 0.96 / time,
        "duration": time,
        "retransmissions": float(draw.randrange(0, 40)),
        "retransmission_share": draw.uniform(0, 0.002),
        "out_of_order_bytes": max(waiting),
        **{share(path): total / sum(totals.values()) for path, total in totals.items()},
    }
    if case.caps:
        numbers["joined"] = delay / 3
        numbers["time_to_throttle"] = delay - delay / 3
    paths = {path: tuple(values) for path, values in rates.items()}
    series = Series(tuple(times), paths, {"out_of_order_bytes": tuple(waiting)})
    return Run(case.key, repetition, True, "", 0.0, time, series, numbers)


def result(
    scenario: str,
    cases: tuple[Case, ...],
    *,
    repetitions: int = 5,
    octets: float = 60e6,
    seed: int = 7,
    title: str = "",
    references: tuple[Reference, ...] = (),
) -> PaperResult:
    """Draw a whole experiment."""
    draw = random.Random(seed)
    runs = tuple(run(draw, case, number, octets) for number in range(1, repetitions + 1) for case in cases)
    paper = f"Figure {scenario.removeprefix('fig')}" if scenario.startswith("fig") else "Table 1"
    return PaperResult(
        provenance=PROVENANCE, experiment=scenario, title=title or f"Title of {scenario}", paper=paper,
        parameters={"file_bytes": int(octets), "squid_cache": "off"}, seed=seed, complete=True,
        repetitions=repetitions, cases=cases, runs=runs, summary=summarise(cases, runs), references=references,
    )  # fmt: skip


TCP_ETHERNET = Case("tcp-ethernet", "TCP over Ethernet", kind="baseline", path="ethernet")
TCP_WIFI = Case("tcp-wifi", "TCP over Wi-Fi", kind="baseline", path="wifi")


def fig2() -> PaperResult:
    cases = (replace(TCP_ETHERNET, kind="panel"), replace(TCP_WIFI, kind="panel"))
    return result("fig2", cases, title="TCP without the proxy: one path at a time")


def fig4() -> PaperResult:
    swept = [Case(f"buffer-{kb}", f"buffer {kb / 1000:g} MB", kind="sweep", at=1e3 * kb) for kb in SWEPT]
    cases = (Case("small", "(a) receive buffer 0.18 MB"), Case("large", "(b) receive buffer 0.72 MB"), *swept)
    needed = Reference("sweep", 0.48e6, "2 × sum of bandwidth × greatest RTT: 0.48 MB")
    drawn = result("fig4", cases, title="Receive buffer", octets=30e6, repetitions=3, references=(needed,))
    runs = []
    for done in drawn.runs:
        at = drawn.case(done.case).at
        fits = min(1.0, (at or 1e9) / 0.48e6) ** 0.7
        runs.append(replace(done, values={**done.values, "goodput": fits * done.values["goodput"]}))
    return replace(drawn, runs=tuple(runs), summary=summarise(cases, runs))


def fig5() -> PaperResult:
    return result("fig5", (Case("mtu-1500", "MTU 1500"), Case("mtu-1000", "MTU 1000")), title="MTU 1000 against 1500")


def fig6() -> PaperResult:
    caps = {"ethernet": 5e6}
    cases = (
        Case("free", "not throttled"),
        Case("first", "(a) throttled, first transfer", caps=caps),
        Case("repeated", "(b) throttled, repeated transfer", caps=caps),
    )
    return result("fig6", cases, title="Throttled Ethernet, a file of 5 MB, first and repeated", octets=9e6)


def fig7() -> PaperResult:
    cases = (
        TCP_WIFI,
        Case("free", "Multipath TCP, not throttled"),
        Case("throttled", "Multipath TCP, Ethernet throttled", caps={"ethernet": 5e6}),
    )
    return result("fig7", cases, title="Throttled Ethernet, a file of 200 MB", octets=1e8, repetitions=3)


def table1() -> PaperResult:
    draw = random.Random(7)
    cases = (Case("mptcp", "Multipath TCP"), Case("tcp", "plain TCP"))
    typical = {"syn up": -7.9, "data up": -7.2, "data down": -7.8, "stream up": -7.4, "stream down": -7.6}

    def one(case: Case, number: int) -> Run:
        faster = 0.3 if case.key == "tcp" else 0.0
        drawn = {n: tuple(draw.lognormvariate(m - faster, 0.4) for _ in range(400)) for n, m in typical.items()}
        drawn["bulk down"] = tuple(draw.lognormvariate(-4.5 - faster, 0.7) for _ in range(800))
        values = {f"median_{name.replace(' ', '_')}": percentile(v, 50) for name, v in drawn.items()}
        return Run(case.key, number, True, values=values, distributions=drawn)

    runs = tuple(one(case, number) for number in (1, 2, 3) for case in cases)
    return PaperResult(
        provenance=PROVENANCE, experiment="table1", title="Protocol conversion delay", paper="Table 1",
        parameters={"cap": "5 Mbit/s"}, seed=7, complete=True, repetitions=3, cases=cases, runs=runs,
        summary=summarise(cases, runs),
        references=(Reference("syn", 0.0085, "paper, SYN: 8.5 ms"), Reference("data", 0.0234, "paper, data: 23.4 ms")),
    )  # fmt: skip


def incomplete() -> PaperResult:
    """Return an interrupted result, with hostile texts and without data points."""
    hostile = '<script>alert(1)</script> & "quoted"'
    return replace(
        fig2(), complete=False, title=hostile, runs=(Run("tcp-wifi", 1, False, hostile),), summary=(), notes=(hostile,),
        claims=(JudgedClaim("x", hostile, hostile, "not judged", hostile),),
    )  # fmt: skip


def fig3() -> PaperResult:
    drawn = result(
        "fig3", (Case("mptcp", "MPTCP through the proxy"), TCP_ETHERNET, TCP_WIFI), title="MPTCP through the proxy"
    )
    claims = (
        JudgedClaim("capacity", "MPTCP gives no less than TCP on the better path.", "113 against 92 Mbit/s.", "holds"),
        JudgedClaim("idle-wifi", "Wi-Fi stays almost unused.", "Wi-Fi carried 20 %.", "differs",
                "The kernel's scheduler fills every path whose window has room."),
    )  # fmt: skip
    failed = Run("mptcp", 6, False, "fell back to plain TCP")
    return replace(drawn, claims=claims, runs=(*drawn.runs, failed), notes=("The links are emulated.",))


EXAMPLES = (fig2, fig3, fig4, fig5, fig6, fig7, table1)
