# SPDX-License-Identifier: GPL-2.0-or-later
"""The host between a home and its uplinks: it looks after these."""
