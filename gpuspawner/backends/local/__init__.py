"""Workspaces as processes of this machine, with its own GPUs or simulated ones.

Belongs here: finding and ending processes by the lease id in their environment, real GPUs through ``nvidia-smi``,
simulated GPUs, the stand-in ``nvidia-smi`` that shows them, and ``busy``, which makes them work.
Never here: what any backend needs (``gpuspawner.backends``). What a workspace imports (this file, ``records``,
``simulated``, ``standin``) uses the standard library alone.
"""

__all__ = ["busy"]


def __getattr__(name: str) -> object:
    """Import ``busy`` where it is asked for: the stand-in comes through here too, and must start fast."""
    if name == "busy":
        from gpuspawner.backends.local.simulated import busy  # noqa: PLC0415 (as said)

        return busy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
