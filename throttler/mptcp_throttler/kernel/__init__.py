# SPDX-License-Identifier: GPL-2.0-or-later
"""The ports to the kernel and their adapters. No other module changes or queries the kernel."""
