"""The hub: its REST API, its servers, its users and groups, and who stopped a server."""
