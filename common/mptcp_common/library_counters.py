# SPDX-License-Identifier: GPL-2.0-or-later
"""Counters of the proxy's preload libraries: their names, and the file that all Squid processes of an instance share.

The file has a 64-bit number per name, in this host's byte order and in the order of the names. The libraries use the
same order (``enum counter`` in proxy/mptcp_proxy/shim/both/both.h).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

COUNTERS = {
    "turns": "Turns of Squid's event loops (epoll_wait).",
    "cut_turns": "Turns in which a client had more ready events than its share.",
    "joined_writes": "Writes that the library delayed and joined with others.",
    "joined_bytes": "Bytes of joined writes.",
    "promised_writes": "Connections that the library reported as writable without a query to the kernel.",
    "late_writers": "Connections that the library kept open for a client that may still write.",
    "zero_reads": "Reads of zero bytes that the library answered itself.",
    "postponed_accepts": "Number of times that a new client waited for a free descriptor.",
}
"""Descriptions of the counters, by name."""
FILE = "counters"
FILES = {service: Path("/run", service, FILE) for service in ("mptcpproxy", "mptcprelay")}
"""The file of each role's default instance, by the name of its service."""
_LAYOUT = struct.Struct(f"={len(COUNTERS)}Q")
NONE = bytes(_LAYOUT.size)
"""The file's initial content."""


def read(file: Path) -> dict[str, int]:
    """Return the counts by name; no counts if the file is missing, or was written by another version."""
    try:
        return dict(zip(COUNTERS, _LAYOUT.unpack(file.read_bytes()), strict=True))
    except (OSError, struct.error):
        return {}


def counts_of_all(files: Mapping[str, Path]) -> dict[str, tuple[str, dict[str, int]]]:
    """Return, by name, each counter's description, and its count in each instance that has a file."""
    counted = {service: found for service, file in files.items() if (found := read(file))}
    return {
        name: (text, {service: found[name] for service, found in counted.items()}) for name, text in COUNTERS.items()
    }
