# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon: what runs on the event loop."""
