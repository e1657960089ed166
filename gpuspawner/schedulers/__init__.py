"""Schedulers grant GPUs. Each has an adapter behind the interface in ``base``.

Belongs here: asking a scheduler what it could give, letting it give, and what is to be put into the workspace for it.
Never here: leases' phases, policies, HTTP to users.
"""
