# SPDX-License-Identifier: GPL-2.0-or-later
"""Pages for the proxy's clients: how to use the proxy, and how a client is connected through it."""
