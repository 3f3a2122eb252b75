# SPDX-License-Identifier: GPL-2.0-or-later
"""Output for readers and programs."""
