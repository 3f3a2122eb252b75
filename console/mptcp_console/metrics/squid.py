# SPDX-License-Identifier: GPL-2.0-or-later
"""Squid's own counters: pages of its cache manager, as text. Pure.

squid.conf allows these pages only to this host (``http_access allow localhost manager``). If Squid has several workers,
its coordinator adds up their values in the pages ``info`` and ``counters``. A replacement for a worker that ended
counts from 0, so the sum drops. Prometheus would interpret that as a restart of the whole counter, and would count the
bytes of the other workers a second time. So this module requests the counters of each process separately
(``processes=NUMBER``). A replacement has the number of the worker that ended, so only that process's counter restarts.
Each page that Squid does not add up lists the numbers of its processes; this module uses ``refresh``, because it is
short and exists in all builds.

Squid counts a tunnel (CONNECT) as a request to a server that is neither HTTP nor FTP (``server.other``; src/tunnel.cc).
With conf/squid.conf, which refuses other protocols, only tunnels are counted there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from prometheus_client.core import Metric

from .building import Labels, counters, gauge, gauges

INFO, COUNTERS, BY_PROCESS = "info", "counters", "refresh"
SINGLE_PROCESS = 1
"""Number for the process of a single-process Squid, which Squid itself does not number. If Squid has several processes,
it numbers them from 1."""
_PART = re.compile(r"^by kid(\d+) \{$", re.MULTILINE)
_KIB = 1024

_COUNTERS = (
    (
        "client_requests",
        "client_http.requests",
        1,
        "Requests of clients, scrapes included.",
    ),
    ("client_errors", "client_http.errors", 1, "Requests refused or failed."),
    (
        "client_hits",
        "client_http.hits",
        1,
        "Requests answered from the cache.",
    ),
    ("client_received_bytes", "client_http.kbytes_in", _KIB, "Received from clients."),
    ("client_sent_bytes", "client_http.kbytes_out", _KIB, "Sent to clients."),
    ("server_requests", "server.all.requests", 1, "Requests to origins, CONNECT included."),
    ("server_errors", "server.all.errors", 1, "Requests to origins that failed."),
    ("server_received_bytes", "server.all.kbytes_in", _KIB, "Received from origins."),
    ("server_sent_bytes", "server.all.kbytes_out", _KIB, "Sent to origins."),
    ("tunnels", "server.other.requests", 1, "CONNECT tunnels opened."),
    ("aborted_requests", "aborted_requests", 1, "Transfers aborted by the client."),
    ("cpu_seconds", "cpu_time", 1, "Processor time."),
)
_GAUGES = (
    (
        "clients",
        "Number of clients accessing cache",
        1,
        "Client addresses that Squid remembers.",
    ),
    ("file_descriptors", "Number of file desc currently in use", 1, "Descriptors in use."),
    ("file_descriptors_limit", "Maximum number of file descriptors", 1, "Limit of descriptors."),
    ("resident_memory_peak_bytes", "Maximum Resident Size", _KIB, "Peak memory."),
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class SquidPages:
    """Squid's figures from its cache manager."""

    counters: Mapping[int, Mapping[str, float]]
    """Counters of each process, by Squid's names and in Squid's units."""
    info: Mapping[str, str]
    """Information about all processes together, by Squid's titles."""


def parse_processes(text: str) -> list[int]:
    """Return the numbers of the processes with a part in the page ``BY_PROCESS``; an empty list if Squid has only one
    process."""
    return sorted({int(number) for number in _PART.findall(text)})


def parse_info(text: str) -> dict[str, str]:
    """Return the values of the page ``INFO`` by their titles."""
    lines = (line.partition(":") for line in text.splitlines())
    return {title.strip(): value.strip() for title, colon, value in lines if colon}


def parse_counters(text: str) -> dict[str, float]:
    """Return the values of a page ``COUNTERS`` by their names. Raises ValueError if the page is not Squid's."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        name, equals, value = line.partition(" = ")
        found = _NUMBER.match(value)
        if equals and found:
            values[name.strip()] = float(found[0])
    if "client_http.requests" not in values:
        raise ValueError(f"this is not the page {COUNTERS} of Squid's cache manager")
    return values


def squid_families(pages: SquidPages | None) -> Iterator[Metric]:
    """Yield Squid's metrics; *pages* is None if Squid does not answer. Values that a version of Squid lacks are
    omitted."""
    yield gauge("squid_up", "1 while Squid's cache manager answers, else 0.", float(pages is not None))
    if pages is None:
        return
    version = pages.info.get("Squid Object Cache", "").removeprefix("Version ")
    if version:
        yield gauges("squid_build_info", "Version of Squid; always 1.", ("version",), {(version,): 1.0})
    started = pages.info.get("Start Time")
    if started is not None:
        seconds = parsedate_to_datetime(started).timestamp()
        yield gauge("squid_start_time_seconds", "When Squid started.", seconds)
    for name, key, unit, text in _COUNTERS:
        samples: dict[Labels, float] = {
            (str(process),): values[key] * unit for process, values in pages.counters.items() if key in values
        }
        if samples:
            yield counters(f"squid_{name}_total", text, ("process",), samples)
    for name, title, unit, text in _GAUGES:
        found = _NUMBER.match(pages.info.get(title, ""))
        if found:
            yield gauge(f"squid_{name}", text, float(found[0]) * unit)
