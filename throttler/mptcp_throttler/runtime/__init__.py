# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon: the components that run on the event loop."""
