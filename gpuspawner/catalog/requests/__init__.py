"""The options of a start, and the request that they mean."""
