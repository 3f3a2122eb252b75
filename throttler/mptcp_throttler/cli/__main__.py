# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs ``python -m mptcp_throttler.cli``."""

from __future__ import annotations

import sys

from mptcp_throttler.cli import main

sys.exit(main())
