"""Workspaces as processes of this machine, with its own GPUs or simulated ones.

Workspaces import this file, ``records``, ``simulated`` and ``standin``, which use only the standard library.
"""

__all__ = ["busy"]


def __getattr__(name: str) -> object:
    """Import ``busy`` only when needed: the stand-in imports this package and must start fast."""
    if name == "busy":
        from gpuspawner.backends.local.simulated import busy  # noqa: PLC0415 - only when needed

        return busy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
