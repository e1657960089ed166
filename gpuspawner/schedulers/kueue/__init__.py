"""Kueue owns queue, quota and borrowing; this makes one Workload of each place in the queue, before any pod.

Belongs here: what Kueue is told of a lease, what its answers mean, and what we must write in its place.
Never here: who goes before whom; leases' phases.
"""
