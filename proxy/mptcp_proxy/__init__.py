# SPDX-License-Identifier: GPL-2.0-or-later
"""The proxy: distribution Squid behind an MPTCP listener, launched, checked and diagnosed."""
