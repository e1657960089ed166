"""The process of the service: its options, backend, port, start and loops, and its takeover from another one.

Belongs here: what happens once in a process, and what watches it.
Never here: leases, pages, or rules.
"""
