"""``gpuspawner server doctor``: examines an installation. Each finding has a remedy.

Belongs here: asking hub, service and cluster; one small pure function for each check, from an answer to a finding.
Does not belong here: changing anything.
"""
