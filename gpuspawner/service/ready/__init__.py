"""Workspaces that are ready at a time: what ``core.schedules`` decides is carried out, and told, here."""
