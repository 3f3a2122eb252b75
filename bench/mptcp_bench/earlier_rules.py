# SPDX-License-Identifier: GPL-2.0-or-later
"""Kept results in docs/ with verdicts by an earlier, weaker rule, each with the omissions of this rule. Pure.

Today's rule cannot be applied to earlier measurements, because their single values are not kept. Such a result remains
until the experiment is run again. Until then, docs/ shows the omissions together with its verdicts. An entry has the
commit of the measurement, so that it does not apply to a newer result. ``tests/bench/unit/test_kept_results.py`` fails
if an entry is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from .result_file import ExperimentResult

_MEDIANS = "medians of three rounds met an aim or missed it, without a bound that says how sure they are"
EARLIER: Mapping[tuple[str, str], str] = {
    ("relay-squid-6", "81b3a92"): _MEDIANS,
    (
        "guard-up",
        "7291e3b",
    ): "what passes above the cap was not compared with what the other path lacks; recovery had another bound",
    ("tunnel", "754f64b"): "goodput and calls were measured; rates, loss, silence, change and cost were not",
    ("tunnel-paths", "fcb9a79"): "equal paths and calls were not measured; jitter counted as a queue",
}
"""How each earlier rule differs, by the kept result's name and the first seven digits of its commit."""

REPLACED: Mapping[str, str] = {
    "console": "load measures what a console adds beside tunnels, without the pages' own updates",
    "control-plane": "load, part rate",
    "emulation": "tests/lab/kernel/test_emulation_live.py checks emulated paths",
    "reaction": "load, part joins",
    "scale": "load, part held",
}
"""The replacement of an experiment that no longer exists, by the experiment's name in a kept result."""


def earlier_rule(name: str, found: ExperimentResult) -> str | None:
    """Return how the rule that judged *found*, kept as *name*, differs from today's; None if it does not."""
    return EARLIER.get((name, found.provenance.commit[:7]))
