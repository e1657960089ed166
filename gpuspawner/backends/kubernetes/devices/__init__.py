"""Devices that pods claim (dynamic resource allocation, DRA): ResourceSlices, DeviceClasses and ResourceClaims.

Belongs here: what they say, read and counted as nodes and pods tell of resources.
Never here: how a claim is made (``backends.kubernetes.patches``, ``gpuspawner.spawner``).
"""
