"""Requests of users for extra quota: their API, their pages, and the answers to them.

The extra quota itself, limits and usage are in ``quotas``.
"""
