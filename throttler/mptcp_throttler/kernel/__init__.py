# SPDX-License-Identifier: GPL-2.0-or-later
"""The ports to the kernel and the adapters behind them. Nothing else changes or asks the kernel."""
