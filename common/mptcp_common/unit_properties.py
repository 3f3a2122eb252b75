# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads systemd's properties of a unit, drop-ins included (systemctl(1), ``show``)."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

SYSTEMCTL = "/usr/bin/systemctl"
_TIMEOUT = 10


def properties_of_unit(unit: str, names: Sequence[str]) -> dict[str, str]:
    """Return the properties *names* of *unit* as systemd prints them: the defaults if systemd does not know the unit,
    and no properties if systemd does not run."""
    command = [SYSTEMCTL, "show", f"--property={','.join(names)}", unit]
    try:
        answer = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    properties: dict[str, str] = {}
    for line in answer.stdout.splitlines():
        name, equals, value = line.partition("=")
        if equals and name in names:
            # systemd prints some lists with one line per value.
            properties[name] = f"{properties[name]} {value}" if name in properties else value
    return properties
