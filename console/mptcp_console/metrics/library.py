# SPDX-License-Identifier: GPL-2.0-or-later
"""The counters of the proxy's preload libraries in Squid, for each instance on this host. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from .building import Labels, counters

LibraryCounters = Mapping[str, tuple[str, Mapping[str, int]]]
"""For each counter's name, its description, and its values by service name, one for each running instance."""


def library_families(library_counters: LibraryCounters) -> Iterator[Metric]:
    for name, (text, values) in library_counters.items():
        samples: dict[Labels, float] = {(service,): float(value) for service, value in values.items()}
        if samples:
            yield counters(f"mptcp_proxy_library_{name}_total", text, ("service",), samples)
