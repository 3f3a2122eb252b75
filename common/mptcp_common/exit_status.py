# SPDX-License-Identifier: GPL-2.0-or-later
"""Exit statuses of all commands. systemd does not restart a daemon that ends with CONFIGURATION, because a restart
would not help."""

from __future__ import annotations

DONE = 0
FAILED = 1
"""The host or the kernel refused something, or a process or thread ended unexpectedly: a restart may help."""
USAGE = 2
"""Wrong arguments (argparse)."""
CONFIGURATION = 78
"""A daemon's files must be corrected before it can start: EX_CONFIG of sysexits(3)."""
