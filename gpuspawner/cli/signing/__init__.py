"""Who the command line acts for: login by a code, logout, tokens.

Belongs here: where the token of a service is kept, and how it is got and ended. Never here: what is asked by it.
"""
