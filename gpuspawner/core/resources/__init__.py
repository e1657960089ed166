"""Workspaces as custom resources: what is to be done about each, decided from resources and leases."""
