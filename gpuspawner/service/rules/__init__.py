"""What an organisation's rules do to leases: teams, budgets, holds, stronger claims, hours, a catalog that changes."""
