# SPDX-License-Identifier: GPL-2.0-or-later
"""Multipath TCP on the wire: option bytes to frozen structs, and the connection tracker. Pure."""
