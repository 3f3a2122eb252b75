# SPDX-License-Identifier: GPL-2.0-or-later
"""Answers of the status socket, built in a child of the daemon from the daemon's state at that moment."""
