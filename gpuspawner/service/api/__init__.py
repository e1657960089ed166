"""The service's REST API for users, pages, workspaces and the spawner, with their authentication.

Belongs here: reading requests, authentication, calling one method, writing JSON.
Never here: decisions, pages.
"""
