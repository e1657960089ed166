"""A real Kubernetes on one machine, for the tests and for trying: built from pinned versions, started and ended whole.

Belongs here: the work of `make cluster` and `make cluster-stop`, by the standard library alone, since it runs before
anything is installed. Never here: modules that the package `gpuspawner` imports.
"""
