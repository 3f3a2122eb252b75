# SPDX-License-Identifier: GPL-2.0-or-later
"""Results for tests of result file, report and documentation: one of our experiments, one of the paper's."""

from __future__ import annotations

from dataclasses import replace

from mptcp_bench.result_file import ExperimentResult, Provenance, Table, Verdict

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
OURS = ExperimentResult(
    provenance=PROVENANCE,
    experiment="recovery",
    title="kill -9",
    parameters={"runs": 3},
    seed=7,
    aims=(
        Verdict("iptables: gap", 0.125, " s", None, 0.25),
        Verdict("nftables: gap", None, " s", None, 0.25),
        Verdict("nftables: seconds", 0.7),
    ),
    tables=(Table("rates", "Rates", ("path", "Mbit/s"), (("eth0 <100>", "5.0"),)),),
    pictures=("drawn",),
    data={"samples": [1, 2, 3]},
)
PAPERS = replace(
    OURS,
    experiment="fig3",
    title="Figure 3: Multipath TCP",
    aims=(
        Verdict("No less than TCP.", None, verdict="holds", measured_text="113 against 92 Mbit/s."),
        Verdict(
            "Wi-Fi stays unused.",
            None,
            verdict="differs",
            measured_text="It carried 20 %.",
            explanation="The scheduler fills it.",
        ),
    ),
    pictures=("figure",),
    notes=("1 × fell back",),
)
