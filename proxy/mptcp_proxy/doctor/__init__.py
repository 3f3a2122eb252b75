# SPDX-License-Identifier: GPL-2.0-or-later
"""``mptcp-proxy doctor``: finds the problems that keep this host from being a working proxy.

Each check is a small function that computes findings from its input, so that unit tests can call it with the data of
any host. ``gather`` reads the input, ``probe`` tests kernel features in its own network namespace, ``report`` prints
the findings.
"""
