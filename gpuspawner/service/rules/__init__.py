"""The effects of an organisation's rules on leases: teams, budgets, restrictions, hours and catalog changes."""
