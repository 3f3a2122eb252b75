# SPDX-License-Identifier: GPL-2.0-or-later
"""``mptcp-proxy doctor``: finds what keeps this host from being a working proxy.

Each check is a small function from input to findings, which unit tests can feed with any host's output. ``gather``
reads the input, ``probe`` tries kernel features in a network namespace of its own, ``report`` prints.
"""
