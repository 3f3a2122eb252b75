# SPDX-License-Identifier: GPL-2.0-or-later
"""The status as metrics, in the text format of Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mptcp_gateway.model import Verdict


def as_text(status: Mapping[str, Any]) -> str:
    """Return the text for a textfile collector (node_exporter)."""
    registry = CollectorRegistry()
    registry.register(_Status(status))
    return generate_latest(registry).decode()


class _Status(Collector):
    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        labels = ("uplink", "version")
        verdicts = GaugeMetricFamily(
            "mptcp_gateway_uplink", "1 for the current verdict of the uplink's trials.", None, (*labels, "verdict")
        )
        since = GaugeMetricFamily("mptcp_gateway_uplink_verdict_seconds", "Age of the current verdict.", None, labels)
        rtt = GaugeMetricFamily(
            "mptcp_gateway_uplink_rtt_seconds", "Round-trip time of the last trial with an answer.", None, labels
        )
        for way in self._status["ways"]:
            values = (way["uplink"], str(way["version"]))
            for verdict in Verdict:
                verdicts.add_metric((*values, verdict.value), float(way["verdict"] == verdict.value))
            since.add_metric(values, way["for_seconds"])
            if way["rtt_ms"]:
                rtt.add_metric(values, way["rtt_ms"] / 1e3)
        yield from (verdicts, since, rtt)
        home = self._status["home"]
        if home:
            yield from _forwarder(home["forwarder"])


def _forwarder(status: Mapping[str, Any] | None) -> Iterator[Metric]:
    yield GaugeMetricFamily("mptcp_forwarder_up", "Whether the forwarder runs.", float(status is not None))
    if status is None:
        return
    yield GaugeMetricFamily("mptcp_forwarder_parents_up", "Whether a parent answers.", float(status["silent"] is None))
    yield GaugeMetricFamily("mptcp_forwarder_open_connections", "Devices' open connections.", status["open"])
    for name, key, text in (
        ("mptcp_forwarder_connections", "connections", "Devices' connections since the start."),
        ("mptcp_forwarder_direct", "direct", "Connections that bypassed the parents."),
        ("mptcp_forwarder_failed", "failed", "Connections that failed."),
        ("mptcp_forwarder_bytes", "octets", "Bytes of ended connections, in both directions."),
    ):
        yield CounterMetricFamily(name, text, status[key])
