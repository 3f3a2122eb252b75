# SPDX-License-Identifier: GPL-2.0-or-later
"""Traffic control: HTB trees, root qdiscs, segment sizes."""
