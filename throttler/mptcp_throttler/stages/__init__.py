# SPDX-License-Identifier: GPL-2.0-or-later
"""The stages that change verdicts after the policy: budgets, grants, guard, steering, resting. Pure."""
