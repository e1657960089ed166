"""The service's REST API: what people, pages, workspaces and the spawner may ask, and as whom.

Belongs here: reading requests, checking who asks, calling one method, writing JSON.
Never here: decisions, pages.
"""
