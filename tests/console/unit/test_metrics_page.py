# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that docs/metrics.md lists every metric and every alert, up to date, and no others."""

from __future__ import annotations

import re

from metrics_page import PAGE, exported_metrics, name, update_tables
from monitoring import METRIC, alerts
from sample_answers import exposition, samples

NAME_PATTERN = re.compile(r"\b(?:mptcp_(?:throttler|ext|proxy_library)|squid)_[a-z0-9_]+_total\b|\bMptcp[A-Z]\w+")


def test_tables_list_all_metrics_and_alerts() -> None:
    page = PAGE.read_text()
    assert update_tables(page) == page, "update them: python tests/console/metrics_page.py"
    ours = {name(metric) for metric in exported_metrics() if not metric.name.startswith("mptcp_ext")}
    rows = set(
        re.findall(r"^\| `(mptcp_throttler_\w+|mptcp_proxy_library_\w+|squid_\w+|Mptcp\w+)[`{]", page, re.MULTILINE)
    )
    assert rows == ours | {rule["alert"] for rule in alerts()}


def test_each_metric_in_the_page_is_exported() -> None:
    exported = {sample for sample, _ in samples(exposition(exported_metrics()))} | {
        name(metric) for metric in exported_metrics()
    }
    assert set(METRIC.findall(PAGE.read_text())) - {"mptcp_throttler", "mptcp_ext"} <= exported


def test_counters_and_alerts_in_other_pages_exist() -> None:
    exported = {name(metric) for metric in exported_metrics()} | {rule["alert"] for rule in alerts()}
    for page in PAGE.parent.glob("*.md"):
        assert set(NAME_PATTERN.findall(page.read_text())) <= exported, page.name
