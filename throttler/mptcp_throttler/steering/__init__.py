# SPDX-License-Identifier: GPL-2.0-or-later
"""The steering modes: they spread a connection's data over its paths. Pure.

``stages.steering`` gives a mode samples and carries out its actions.
"""
