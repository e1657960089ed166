"""Workspaces as pods of a Kubernetes cluster.

Belongs here: the fleet counted from nodes and pods, the watches they come from, which pods are whose, the probe by
``pods/exec``, and the end of a pod.
Never here: how a pod is made (``gpuspawner.spawner``), and any decision. Nothing is imported here: the hub's spawner
imports ``names`` and must not pay for the service's imports.
"""
