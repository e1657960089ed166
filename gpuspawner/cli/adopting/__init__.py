"""From what an administrator has to a catalog: ``gpuspawner init`` of the GPUs there are, ``import`` of profiles.

Belongs here: reading machines, clusters and profiles, and writing a catalog that a person goes on with.
Never here: what a catalog means, or whether one is right: that is the catalog's room.
"""
