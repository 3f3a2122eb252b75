# SPDX-License-Identifier: GPL-2.0-or-later
"""Multipath TCP on the wire: parses options, and tracks connections."""
