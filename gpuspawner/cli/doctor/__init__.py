"""``gpuspawner server doctor``: looks at an installation, and says beside each finding what to do.

Belongs here: asking hub, service and cluster; one small pure function for each check, from what was answered to a
finding. Never here: changing anything.
"""
