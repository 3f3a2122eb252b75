# SPDX-License-Identifier: GPL-2.0-or-later
"""Exit statuses of all commands. By these, systemd does not restart a daemon whose problem a restart cannot solve."""

from __future__ import annotations

DONE = 0
FAILED = 1
"""The host or the kernel refused something, or something ended by itself: a restart may help."""
USAGE = 2
"""Wrong arguments (argparse)."""
CONFIGURATION = 78
"""A daemon's files cannot be used as they are: EX_CONFIG of sysexits(3)."""
