"""Periods and weekly windows in a time zone."""
