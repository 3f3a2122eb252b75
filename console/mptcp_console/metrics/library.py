# SPDX-License-Identifier: GPL-2.0-or-later
"""The counters of the proxy's preload libraries in Squid, for each instance on this host. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from .building import Labels, counters

Counted = Mapping[str, tuple[str, Mapping[str, int]]]
"""By counter name: its description, and its value for each running instance, by service names."""


def library_families(counted: Counted) -> Iterator[Metric]:
    for name, (text, values) in counted.items():
        samples: dict[Labels, float] = {(service,): float(value) for service, value in values.items()}
        if samples:
            yield counters(f"mptcp_proxy_library_{name}_total", text, ("service",), samples)
