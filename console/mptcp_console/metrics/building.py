"""Families of samples, as the Prometheus client writes them: gauges and counters from one mapping each. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Labels = tuple[str, ...]
"""Values of a sample's labels, in the order in which the family names them."""
ABSENT = "-"
"""The label of what has no name, as in ``mptcp-throttler status``. No path, rule or budget of a policy is called so."""


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
    """Add up what has the same labels: Prometheus refuses a scrape in which a sample comes twice."""
    added: defaultdict[Labels, float] = defaultdict(float)
    for labels, value in samples:
        added[labels] += value
    return dict(added)
