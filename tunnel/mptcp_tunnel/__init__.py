# SPDX-License-Identifier: GPL-2.0-or-later
"""Multipath UDP: sends the packets of a tunnel program over several paths, without a change of that program."""
