"""`gpuspawner server import`: profiles of KubeSpawner read, sorted and written as a catalog; nothing of them is run."""
