# SPDX-License-Identifier: GPL-2.0-or-later
"""Generates the tables of docs/metrics.md from the metrics (names, labels, help texts) and from the alerts.

``python tests/console/metrics_page.py`` writes them into the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from monitoring import alerts
from prometheus_client.core import Metric
from sample_answers import kernel_answer, library_answer, squid_answer, summary_answer

from mptcp_console.metrics import families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
_TABLE = re.compile(r"<!-- metrics: (\w+) -->\n(?:(?!<!-- ).)*<!-- end -->", re.DOTALL)
_UNITS = {"humanizePercentage": "N %", "humanizeDuration": "N s"}


def update_tables(page: str) -> str:
    """Return *page* with up-to-date tables."""
    return _TABLE.sub(lambda found: f"<!-- metrics: {found[1]} -->\n\n{table(found[1])}\n<!-- end -->", page)


def table(prefix: str) -> str:
    """Return the table of the metrics whose names begin with *prefix*, or of the ``alerts``."""
    if prefix == "alerts":
        return "\n".join(["| alert | severity | meaning |", "|---|---|---|", *map(_alert_row, alerts())]) + "\n"
    rows = [
        f"| `{_series(each)}` | {each.documentation} |" for each in exported_metrics() if each.name.startswith(prefix)
    ]
    return "\n".join(["| metric | meaning |", "|---|---|", *rows]) + "\n"


def _series(metric: Metric) -> str:
    shown_labels = [label for label in labels(metric) if label != "le"]
    return name(metric) + (f"{{{','.join(shown_labels)}}}" if shown_labels else "")


def _alert_row(rule: dict[str, Any]) -> str:
    text = rule["annotations"]["summary"].removeprefix("{{ $labels.instance }}: ")
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: found[1].upper(), text)
    text = re.sub(r"\{\{ \$value \| (\w+) \}\}", lambda found: _UNITS.get(found[1], "N"), text)
    return f"| `{rule['alert']}` | {rule['labels']['severity']} | {text.replace('{{ $value }}', 'N')} |"


def exported_metrics() -> Iterator[Metric]:
    return families(summary_answer(), squid_answer(), kernel_answer(), library_answer())


def name(metric: Metric) -> str:
    return metric.name + ("_total" if metric.type == "counter" else "")


def labels(metric: Metric) -> list[str]:
    return list(dict.fromkeys(label for sample in metric.samples for label in sample.labels))


if __name__ == "__main__":
    PAGE.write_text(update_tables(PAGE.read_text()))
