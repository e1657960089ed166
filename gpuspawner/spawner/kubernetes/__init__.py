"""What workspaces as pods need beside KubeSpawner."""
