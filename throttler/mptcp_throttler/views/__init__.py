# SPDX-License-Identifier: GPL-2.0-or-later
"""Answers and descriptions that readers and programs get."""
