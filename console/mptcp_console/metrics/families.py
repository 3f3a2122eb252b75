# SPDX-License-Identifier: GPL-2.0-or-later
"""All exported metrics, from the figures of one scrape. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric

from .kernel import mptcp_ext_families
from .library import LibraryCounters, library_families
from .squid import SquidPages, squid_families
from .throttler import throttler_families


def families(
    summary: Mapping[str, Any] | None,
    squid: SquidPages | None,
    mptcp_ext: Mapping[str, int] | None,
    library: LibraryCounters | None = None,
) -> Iterator[Metric]:
    """Yield the metrics of throttler, Squid, Squid's preload libraries and kernel. None for a source means that it does
    not answer or does not exist."""
    yield from throttler_families(summary)
    yield from squid_families(squid)
    yield from library_families(library or {})
    yield from mptcp_ext_families(mptcp_ext or {})
