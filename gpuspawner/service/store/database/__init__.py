"""The database below the store: its two dialects, its schema, and work on it without a service.

Belongs here: what is the same whatever the tables hold.
Never here: readers and writers of a table.
"""
