# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's MPTCP path manager: events and priorities."""
