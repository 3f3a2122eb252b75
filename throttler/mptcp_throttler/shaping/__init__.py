# SPDX-License-Identifier: GPL-2.0-or-later
"""Turns verdicts into the HTB classes and set entries that the kernel must have, and computes the changes. Pure."""
