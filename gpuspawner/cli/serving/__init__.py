"""`gpuspawner serve`: what it is started with, and where workspaces live."""
