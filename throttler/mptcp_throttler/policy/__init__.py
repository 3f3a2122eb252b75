# SPDX-License-Identifier: GPL-2.0-or-later
"""Loads the operator's policy from YAML, and evaluates connections into verdicts."""
