"""The queue: positions, estimates and the sentences of a waiting request."""
