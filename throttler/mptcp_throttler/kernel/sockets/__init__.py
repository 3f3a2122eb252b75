# SPDX-License-Identifier: GPL-2.0-or-later
"""The proxy's sockets: diagnostics, limits and counters."""
