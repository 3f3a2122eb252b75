# SPDX-License-Identifier: GPL-2.0-or-later
"""Netfilter: what sends a subflow's packets to its class."""
