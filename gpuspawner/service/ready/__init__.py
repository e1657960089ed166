"""Workspaces that are ready at a time: what ``core.calendar.ready`` decides is carried out, and told, here."""
