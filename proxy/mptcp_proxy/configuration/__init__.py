# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads squid.conf as Squid does, and finds all mistakes in it before Squid reads it."""
