"""What a workspace does for its user when it starts: variables, a repository, a script, tools.

Belongs here: reading ``~/.gpuspawner/``, as the workspace's own user, and telling what came of it.
Never here: anything that is stored, sent or logged of what stands there but the names of variables.
"""
