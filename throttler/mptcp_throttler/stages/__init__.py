"""What changes verdicts after the policy: budgets, guard, steering. Pure."""
