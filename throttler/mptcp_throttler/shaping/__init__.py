# SPDX-License-Identifier: GPL-2.0-or-later
"""From verdicts to kernel objects: HTB classes, set entries, and the difference between two states. Pure."""
