"""Prometheus metrics of the service."""
