# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers of the metrics tests: sample answers of the throttler, Squid and the kernel, and a parser for metrics."""

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
from mptcp_console.metrics.library import LibraryCounters
from mptcp_console.metrics.squid import SquidPages, parse_counters, parse_info

ANSWERS = Path(__file__).parent / "answers"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def summary_answer() -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((ANSWERS / "summary.json").read_text())
    return summary


def squid_page_texts() -> dict[str, str]:
    """Return the pages of a Squid with one process."""
    return {page: (ANSWERS / f"squid-{page}.txt").read_text() for page in ("counters", "info", "refresh")}


def page_with_parts(parts: Mapping[int, str]) -> str:
    """Return a page of several Squid processes (kids): one part of each, by its number."""
    return "".join(f"by kid{number} {{\n{text}}} by kid{number}\n\n" for number, text in parts.items())


def squid_answer(*processes: int) -> SquidPages:
    """Return the answer of a Squid with these *processes*, by default one."""
    pages = squid_page_texts()
    return SquidPages(dict.fromkeys(processes or [1], parse_counters(pages["counters"])), parse_info(pages["info"]))


def kernel_answer() -> dict[str, int]:
    fields = parse_mptcp_ext((ANSWERS / "netstat.txt").read_text())
    assert fields is not None
    return fields


def library_answer(*services: str) -> LibraryCounters:
    """Return counters of these services' preload libraries: 1 for the first counter, 2 for the second, and so on."""
    values = enumerate(COUNTERS.items(), 1)
    return {name: (text, dict.fromkeys(services or ["mptcpproxy"], value)) for value, (name, text) in values}


def exposition(metrics: Iterable[Metric]) -> str:
    """Return *metrics* in the text format that Prometheus reads."""

    class GivenMetrics(Collector):
        def collect(self) -> Iterable[Metric]:
            return given_metrics

    given_metrics = tuple(metrics)
    registry = CollectorRegistry()
    registry.register(GivenMetrics())
    return generate_latest(registry).decode()


def samples(text: str) -> Samples:
    """Return all samples in the metrics *text*. No sample may be in it twice."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"duplicate sample: {key}"
            found[key] = sample.value
    return found


def sample_key(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the key of a sample in :func:`samples`."""
    return name, tuple(sorted(labels.items()))
