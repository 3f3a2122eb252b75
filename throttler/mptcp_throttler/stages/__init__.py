"""What changes verdicts after the policy: budgets, guard, steering, rest. Pure."""
