"""Sign-in of the command line by a code, and the API tokens that it gets.

Tokens of the hub and of workspaces, and tickets of pages, are not here.
"""
