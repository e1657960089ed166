"""Workspaces: what is shown of one, its pages, and what its user may do."""
