"""Samples of running workspaces: probes, DCGM exporter, and the state of each GPU."""
