"""Limits, budgets, extra quota and usage: their models, presenter, API, pages and lists.

The decisions that follow from a quota are in ``core/quotas``.
"""
