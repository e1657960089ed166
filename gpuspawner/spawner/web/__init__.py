"""The hub's own pages: the form, its options, and what they show of the service."""
