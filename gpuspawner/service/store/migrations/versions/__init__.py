"""One module a migration, named by number."""
