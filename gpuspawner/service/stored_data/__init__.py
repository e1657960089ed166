"""The stored data of a person: they see and export it, and an administrator deletes it."""
