# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests of the metrics share: answers in the form in which throttler, Squid and kernel give them, and the
samples that a text of metrics has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from mptcp_common.library_counters import COUNTERS
from mptcp_console.metrics.kernel import parse_mptcp_ext
from mptcp_console.metrics.library import Counted
from mptcp_console.metrics.squid import SquidPages, parse_counters, parse_info

ANSWERS = Path(__file__).parent / "answers"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def summary_answer() -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((ANSWERS / "summary.json").read_text())
    return summary


def squid_page_texts() -> dict[str, str]:
    """Return the pages of a Squid with one process."""
    return {page: (ANSWERS / f"squid-{page}.txt").read_text() for page in ("counters", "info", "refresh")}


def by_kid(parts: Mapping[int, str]) -> str:
    """Return a page that several processes of a Squid have written, each its part."""
    return "".join(f"by kid{number} {{\n{text}}} by kid{number}\n\n" for number, text in parts.items())


def squid_answer(*processes: int) -> SquidPages:
    """Return what a Squid with such *processes* says of itself, or one with one process."""
    pages = squid_page_texts()
    return SquidPages(dict.fromkeys(processes or [1], parse_counters(pages["counters"])), parse_info(pages["info"]))


def kernel_answer() -> dict[str, int]:
    fields = parse_mptcp_ext((ANSWERS / "netstat.txt").read_text())
    assert fields is not None
    return fields


def library_answer(*services: str) -> Counted:
    """Return what the preload libraries of such instances counted: 1 of the first name, 2 of the second, and so on."""
    values = enumerate(COUNTERS.items(), 1)
    return {name: (text, dict.fromkeys(services or ["mptcpproxy"], value)) for value, (name, text) in values}


def exposition(metrics: Iterable[Metric]) -> str:
    """Return *metrics* as Prometheus reads them."""

    class Given(Collector):
        def collect(self) -> Iterable[Metric]:
            return given

    given = tuple(metrics)
    registry = CollectorRegistry()
    registry.register(Given())
    return generate_latest(registry).decode()


def samples(text: str) -> Samples:
    """Return all samples of a text of metrics; none may come twice."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def labelled(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the key of a sample."""
    return name, tuple(sorted(labels.items()))
