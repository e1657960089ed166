"""The effects of an organisation's rules on leases: teams, budgets, holds, priorities, hours and catalog changes."""
