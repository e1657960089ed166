"""The way from an existing hub to a catalog: ``gpuspawner server init``, ``import`` and ``doctor``. Optional.

Belongs here: reading machines, clusters and profiles, and writing a catalog that a person then edits.
Does not belong here: the meaning of a catalog, which is in :mod:`gpuspawner.catalog`. No other package needs this one.
"""
