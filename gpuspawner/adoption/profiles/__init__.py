"""Profiles of KubeSpawner read, sorted and used as a catalog, or written as one; nothing of them is run."""

from gpuspawner.adoption.profiles.command import use_profiles

__all__ = ["use_profiles"]
