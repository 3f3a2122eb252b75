# SPDX-License-Identifier: GPL-2.0-or-later
"""Netfilter: the rules and sets that direct a subflow's packets to its class."""
