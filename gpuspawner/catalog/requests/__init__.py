"""What users may ask for: the options of a start, and the request that they mean."""
