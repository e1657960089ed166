"""The gpuspawner service: the one owner of leases, queue, idle state, readings and audit.

Belongs here: what acts. It observes, decides by ``core``, writes to the store, then acts on hub and backend.
Never here: a decision that could be a pure function (``core``), or anything that JupyterHub loads (``spawner``).
"""
