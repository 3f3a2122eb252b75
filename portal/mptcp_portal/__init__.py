# SPDX-License-Identifier: GPL-2.0-or-later
"""Pages for phones: how to use the proxy, and how they are connected through it."""
