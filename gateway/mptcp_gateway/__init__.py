# SPDX-License-Identifier: GPL-2.0-or-later
"""The gateway between a home and its uplinks: it watches the uplinks and keeps connections on working ones."""
