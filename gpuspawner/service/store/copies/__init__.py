"""Whole copies of the store: backups and their return, and from SQLite to PostgreSQL."""
