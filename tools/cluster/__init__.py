"""A real Kubernetes on one machine, for the tests and for trying: built from pinned versions, started and ended whole.

What belongs here: what `make cluster` and `make cluster-stop` do, by the standard library alone, since it runs before
anything is installed. Never: what the package `gpuspawner` imports.
"""
