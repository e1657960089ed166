"""Backends run workspaces. ``base`` is the interface, with one package for each place.

A backend observes the fleet and the workspaces, runs the probe, and ends workspaces. It takes no decision. Nothing is
imported here: a workspace imports ``gpuspawner.backends.local`` and must not pay for the service's imports.
"""
