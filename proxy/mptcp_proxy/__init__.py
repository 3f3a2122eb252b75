# SPDX-License-Identifier: GPL-2.0-or-later
"""The proxy: starts the distribution's Squid with MPTCP listeners, checks its configuration, and diagnoses the host."""
