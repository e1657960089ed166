"""Sign-in of the command line by a code: what waits to be allowed, and the tokens that come of it.

Belongs here: who may act by which token of ours. Never here: tokens of the hub, of workspaces, or tickets of pages.
"""
