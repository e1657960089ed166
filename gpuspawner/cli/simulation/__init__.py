"""`gpuspawner simulate`: its cases, its report, its page."""
