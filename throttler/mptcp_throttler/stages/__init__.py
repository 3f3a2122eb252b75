"""The stages that change verdicts after the policy: budgets, grants, guard, steering, rest. Pure."""
