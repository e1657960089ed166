"""Workspaces as pods: additions to KubeSpawner."""
