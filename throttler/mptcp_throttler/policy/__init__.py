# SPDX-License-Identifier: GPL-2.0-or-later
"""The operator's policy: load it from YAML, and evaluate connections into verdicts. Pure."""
