"""Choices that come before a start: a user's presets of the form."""
