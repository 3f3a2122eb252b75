"""Squid's own counters, from the text of its cache manager's pages. Pure.

squid.conf gives these pages only to the host itself (``http_access allow localhost manager``). With ``workers``,
Squid's coordinator adds up ``info`` and ``counters`` of all. A worker that replaces an ended one counts from 0, so the
sum falls. Prometheus would take that for a restart, and count the others' total a second time. So each process's
counters are read separately (``processes=NUMBER``; a successor takes over the number), and reset separately. The
numbers are in every page that Squid does not add up: ``refresh`` exists in all builds, and is short.

Squid counts a tunnel (CONNECT) as a request to a server of another kind than HTTP and FTP (``server.other``;
src/tunnel.cc). Nothing else counts there, because conf/squid.conf refuses other protocols.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from prometheus_client.core import Metric

from .building import Labels, counters, gauge, gauges

INFO, COUNTERS, BY_PROCESS = "info", "counters", "refresh"
THE_ONLY_PROCESS = 1
"""A Squid with one process does not number it. Several are numbered from this."""
_PART = re.compile(r"^by kid(\d+) \{$", re.MULTILINE)
_KIB = 1024

_COUNTERS = (
    (
        "client_requests",
        "client_http.requests",
        1,
        "Requests of clients; each scrape is two of them, and one more for each process.",
    ),
    ("client_errors", "client_http.errors", 1, "Requests of clients that were refused or failed."),
    (
        "client_hits",
        "client_http.hits",
        1,
        "Requests of clients answered from the cache, which is off unless turned on.",
    ),
    ("client_received_bytes", "client_http.kbytes_in", _KIB, "Received from clients, in steps of 1 KiB."),
    ("client_sent_bytes", "client_http.kbytes_out", _KIB, "Sent to clients, in steps of 1 KiB."),
    ("server_requests", "server.all.requests", 1, "Requests to origins, tunnels included."),
    ("server_errors", "server.all.errors", 1, "Requests to origins that failed."),
    ("server_received_bytes", "server.all.kbytes_in", _KIB, "Received from origins, in steps of 1 KiB."),
    ("server_sent_bytes", "server.all.kbytes_out", _KIB, "Sent to origins, in steps of 1 KiB."),
    ("tunnels", "server.other.requests", 1, "Tunnels opened (CONNECT)."),
    ("aborted_requests", "aborted_requests", 1, "Transfers that a client left before their end."),
    ("cpu_seconds", "cpu_time", 1, "Processor time."),
)
_GAUGES = (
    (
        "clients",
        "Number of clients accessing cache",
        1,
        "Client addresses that Squid remembers, the scraper's among them.",
    ),
    ("file_descriptors", "Number of file desc currently in use", 1, "Descriptors in use."),
    ("file_descriptors_limit", "Maximum number of file descriptors", 1, "Descriptors that Squid may have."),
    ("resident_memory_peak_bytes", "Maximum Resident Size", _KIB, "Most memory that Squid has had."),
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class SquidPages:
    """Squid's figures."""

    counters: Mapping[int, Mapping[str, float]]
    """By process, then by Squid's names, in its units."""
    info: Mapping[str, str]
    """Of all processes, by Squid's titles."""


def parse_processes(text: str) -> list[int]:
    """Return the numbers of the processes in the page ``BY_PROCESS``: none if there is only one."""
    return sorted({int(number) for number in _PART.findall(text)})


def parse_info(text: str) -> dict[str, str]:
    """Return the page ``INFO`` by its titles."""
    lines = (line.partition(":") for line in text.splitlines())
    return {title.strip(): value.strip() for title, colon, value in lines if colon}


def parse_counters(text: str) -> dict[str, float]:
    """Return a page ``COUNTERS`` by its names. Raises ValueError if it is not Squid's."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        name, equals, value = line.partition(" = ")
        found = _NUMBER.match(value)
        if equals and found:
            values[name.strip()] = float(found[0])
    if "client_http.requests" not in values:
        raise ValueError(f"this is not the page {COUNTERS} of a Squid's cache manager")
    return values


def squid_families(pages: SquidPages | None) -> Iterator[Metric]:
    """Yield Squid's metrics; None: it does not answer. Figures that a version of Squid lacks are left out."""
    yield gauge("squid_up", "1 while Squid answers for its cache manager's pages, else 0.", float(pages is not None))
    if pages is None:
        return
    version = pages.info.get("Squid Object Cache", "").removeprefix("Version ")
    if version:
        yield gauges("squid_build_info", "Version of Squid; the value is 1.", ("version",), {(version,): 1.0})
    started = pages.info.get("Start Time")
    if started is not None:
        seconds = parsedate_to_datetime(started).timestamp()
        yield gauge("squid_start_time_seconds", "Since when Squid runs, seconds since the epoch.", seconds)
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
