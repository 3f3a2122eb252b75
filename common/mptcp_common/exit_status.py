"""Exit statuses of all commands. The units keep systemd from starting again what a restart cannot cure."""

from __future__ import annotations

DONE = 0
FAILED = 1
"""The host or the kernel refused something, or something ended by itself: a new start may help."""
USAGE = 2
"""Wrong arguments (argparse)."""
CONFIGURATION = 78
"""A daemon's files say something that cannot be done: EX_CONFIG of sysexits(3)."""
