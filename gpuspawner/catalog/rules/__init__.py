"""An organisation's rules in the catalog: teams, quotas, budgets, class holds, hours, and who sees what.

Belongs here: their models, readers and checks, and what of a catalog exists for the members of which groups.
Never here: what follows from the rules for a request, which is decided in ``core``.
"""
