"""From what an administrator has to a catalog: of the GPUs of a machine or a cluster, ``gpuspawner server init``.

Belongs here: reading machines and clusters, and writing a catalog that a person goes on with.
Never here: what a catalog means, or whether one is right: that is the catalog's room.
"""
