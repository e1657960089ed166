"""Time as people divide it: days, weeks and months of a time zone."""
