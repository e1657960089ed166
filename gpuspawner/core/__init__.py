"""Decisions on plain values.

Belongs here: frozen records (requests, GPUs, leases, readings) and pure functions that decide over them, with
``now`` as an argument.
Never here: I/O, a clock, randomness without a seed, logging, JupyterHub, Kubernetes, SQL, HTTP.
"""
