"""Choices before a start: a user's presets of the form, and schedules."""
