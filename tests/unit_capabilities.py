# SPDX-License-Identifier: GPL-2.0-or-later
"""Command prefixes that reduce the capabilities of a program to those of a systemd unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

UNITS: Final = Path(__file__).parents[1] / "systemd"
NUMBERS: Final = {
    "chown": 0,
    "dac_override": 1,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "net_bind_service": 10,
    "net_admin": 12,
    "net_raw": 13,
    "sys_nice": 23,
    "perfmon": 38,
    "bpf": 39,
}
"""Capability numbers of linux/capability.h."""
_BOUNDING: Final = "--bounding-set=-all,+"


def capability_prefix(unit: str, without: str | None = None) -> list[str]:
    """Return the command prefix that reduces the capabilities of a program to those of a unit, except *without*."""
    text = (UNITS / f"{unit}.service").read_text()
    (capabilities,) = re.findall(r"^CapabilityBoundingSet=(.*)$", text, re.MULTILINE)
    names = [each.lower().removeprefix("cap_") for each in capabilities.split()]
    return ["setpriv", _BOUNDING + ",+".join(each for each in names if each != without), "--no-new-privs"]


def split_capability_prefix(argv: Sequence[str]) -> tuple[int | None, list[str]]:
    """Split *argv* into the capabilities in a prefix of :func:`capability_prefix` (a bit set), and the command.

    The capabilities are None if *argv* has no such prefix.
    """
    if argv[0] != "setpriv" or not argv[1].startswith(_BOUNDING) or argv[2] != "--no-new-privs":
        return None, list(argv)
    names = argv[1].removeprefix(_BOUNDING).split(",+")
    return sum(1 << NUMBERS[each] for each in names), list(argv[3:])
