"""The start of a workspace for its user: variables, a repository, a script, tools.

Belongs here: reading ``~/.gpuspawner/`` as the workspace's own user, and reporting the result.
Never here: storing, sending or logging any of its content except names of variables.
"""
