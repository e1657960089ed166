"""What people read of the rules: quotas, budgets, teams, stronger claims, and why a place changed."""
