"""Profiles of KubeSpawner, read without running them, and used or written as a catalog."""

from gpuspawner.adoption.profiles.command import use_profiles

__all__ = ["use_profiles"]
