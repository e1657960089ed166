"""`gpuspawner store`: its backup, its return, and what an upgrade would change."""
