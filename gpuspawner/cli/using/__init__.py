"""What users do from a terminal: start, open, keep, extend, stop; who waits, what is free, used and left.

Belongs here: commands over the REST API, for oneself. Never here: what administrators do to others.
"""
