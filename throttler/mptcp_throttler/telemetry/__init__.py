# SPDX-License-Identifier: GPL-2.0-or-later
"""State for status and metrics alone: totals, events, latencies. Pure; no decision depends on it."""
