"""Readings, evidence, softer evidence and streaks: whether a workspace is idle."""
