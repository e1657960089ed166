"""Several clusters, some of which have a scheduler that owns their queue: each lease is told to exactly one.

Belongs here: who is told of which leases, and what stands where one of them does not answer.
Never here: who goes before whom; what one of them is told, and how.
"""
