# SPDX-License-Identifier: GPL-2.0-or-later
"""State that is kept only for the status and the metrics: totals, events, latencies. Pure; no decision depends on
it."""
