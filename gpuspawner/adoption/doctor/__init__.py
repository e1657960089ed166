"""``gpuspawner server doctor``: examines an installation. Each finding has a remedy.

Belongs here: requests to hub, service and cluster, and for each check a function from an answer to a finding.
Does not belong here: changing anything.
"""
