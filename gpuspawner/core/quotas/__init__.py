"""Quotas at one time, budgets of a period, the ledger of charges, and the quotas of a cluster's namespace."""
