# SPDX-License-Identifier: GPL-2.0-or-later
"""The soft onset of caps on sending subflows, and the limits of their sockets during and after it."""
