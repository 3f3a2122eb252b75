# SPDX-License-Identifier: GPL-2.0-or-later
"""The command ``replay``: the throttler's decisions for a capture. The daemon imports no module of this package."""
