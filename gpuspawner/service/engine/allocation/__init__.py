"""Requests, grants and estimates: from the options of a start to GPUs."""
