# SPDX-License-Identifier: GPL-2.0-or-later
"""Paths of this project on this machine: the checkout, its configuration files, its commands."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from .commands import TestbedError

REPOSITORY = Path(__file__).resolve().parents[3]
SQUID_CONFIG = REPOSITORY / "conf" / "squid.conf"
RELAY_CONFIG = REPOSITORY / "conf" / "relay-squid.conf"
THROTTLER_CONFIG = REPOSITORY / "conf" / "throttler.yaml"


def program(name: str) -> str:
    """Return the path of one of our commands, in the directory of this interpreter or in PATH. Raises TestbedError."""
    installed = Path(sysconfig.get_path("scripts")) / name
    path = str(installed) if installed.exists() else shutil.which(name)
    if path is None:
        raise TestbedError(f"start {name}: not installed in {installed.parent}; sudo ./run test installs it")
    return path
