# SPDX-License-Identifier: GPL-2.0-or-later
"""State that only status and metrics use: totals, events, latencies. Pure; no decision depends on this state."""
