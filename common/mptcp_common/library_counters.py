"""What the proxy's preload libraries count: the names, and the file that all Squid processes of an instance add to.

The file is one number of 64 bits after the other, in this host's order, each in the place of its name. The libraries
have the same names (``enum counter`` in proxy/mptcp_proxy/shim/both/both.h).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

COUNTERS = {
    "turns": "Turns of Squid's event loops (epoll_wait).",
    "cut_turns": "Turns in which a client had more ready than its share.",
    "joined_writes": "Writes held to be joined with others.",
    "joined_bytes": "Bytes of joined writes.",
    "promised_writes": "Promises of room to write, without asking the kernel.",
    "late_writers": "Connections kept open for a client that may still write.",
    "zero_reads": "Reads of zero bytes answered in Squid's place.",
    "postponed_accepts": "Times that a new client waited for a descriptor.",
}
"""Each with what it says."""
FILE = "counters"
FILES = {service: Path("/run", service, FILE) for service in ("mptcpproxy", "mptcprelay")}
"""Of each instance with the name that its role has by default."""
_LAYOUT = struct.Struct(f"={len(COUNTERS)}Q")
NONE = bytes(_LAYOUT.size)
"""The file, before anything was counted."""


def read(file: Path) -> dict[str, int]:
    """Return what was counted, by the names; nothing where there is no such file, or another version's."""
    try:
        return dict(zip(COUNTERS, _LAYOUT.unpack(file.read_bytes()), strict=True))
    except (OSError, struct.error):
        return {}


def of_all(files: Mapping[str, Path]) -> dict[str, tuple[str, dict[str, int]]]:
    """Return of each name what it says, and what was counted by each instance whose file is there."""
    counted = {service: found for service, file in files.items() if (found := read(file))}
    return {
        name: (text, {service: found[name] for service, found in counted.items()}) for name, text in COUNTERS.items()
    }
