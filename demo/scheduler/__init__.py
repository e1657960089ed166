"""A reference server of docs/scheduler.openapi.yaml: a batch scheduler in memory, to start, read and test against.

Belongs here: what a scheduler decides, in `machine.py`, without clock or network; what it says over HTTP; and faults on
demand. Never here: anything that gpuspawner's client shares, for two that share code agree on its mistakes; what is
installed for users imports nothing of it.
"""
