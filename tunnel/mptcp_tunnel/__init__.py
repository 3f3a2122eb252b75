# SPDX-License-Identifier: GPL-2.0-or-later
"""Multipath UDP: the packets of a tunnel over several paths, without the tunnel program's knowing."""
