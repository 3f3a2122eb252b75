# SPDX-License-Identifier: GPL-2.0-or-later
"""The steering modes: they spread a connection's data over its paths. Pure.

A mode defines its keys under ``steer``; ``stages.steering`` gives it samples and carries out its actions.
"""
