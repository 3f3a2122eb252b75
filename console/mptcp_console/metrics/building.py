# SPDX-License-Identifier: GPL-2.0-or-later
"""Metric families for the Prometheus client, gauges and counters, each from one mapping. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Labels = tuple[str, ...]
"""Values of a sample's labels, in the order of the family's names."""
ABSENT = "-"
"""Label value for a path without a name, as in ``mptcp-throttler status``. No path, rule or budget has this
name."""


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(name, text, value)


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter without labels; *name* ends with ``_total``."""
    return CounterMetricFamily(name, text, value)


def gauges(name: str, text: str, labels: Sequence[str], samples: Mapping[Labels, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples.items():
        family.add_metric(values, value)
    return family


def counters(name: str, text: str, labels: Sequence[str], samples: Mapping[Labels, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples.items():
        family.add_metric(values, value)
    return family


def sums(samples: Iterable[tuple[Labels, float]]) -> dict[Labels, float]:
    """Add up samples with equal labels, because Prometheus refuses a scrape with duplicates."""
    totals: defaultdict[Labels, float] = defaultdict(float)
    for labels, value in samples:
        totals[labels] += value
    return dict(totals)
