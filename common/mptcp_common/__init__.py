# SPDX-License-Identifier: GPL-2.0-or-later
"""What proxy, throttler and bench read and print alike."""

__version__ = "0.2.0"
"""Of the distribution that has both daemons; pyproject.toml says the same."""
