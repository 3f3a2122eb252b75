# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``replay``: what the throttler would have decided on a capture. The daemon imports none of it."""
