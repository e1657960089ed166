"""Sign-in of the command line by a code, its API tokens, and tickets for SSH.

Tokens of the hub and of workspaces, and tickets of pages, are not here.
"""
