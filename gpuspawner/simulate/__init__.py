"""Histories and generated sessions replayed against a policy.

Belongs here: what would have been stopped, and whether rightly.
Never here: reading a database, or printing; the command line does both.
"""
