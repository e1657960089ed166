"""What administrators do to workspaces, nodes and grants, each with a reason that the user reads.

Belongs here: reading what is asked, checking all of it, saying what it does, and doing it: one path for API and pages.
Never here: what follows for the queue: ``core.administering`` and ``service.rules.restrictions``.
"""
