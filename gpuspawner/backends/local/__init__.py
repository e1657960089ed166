"""Workspaces as processes of this machine, with its own GPUs or simulated ones.

Belongs here: finding and ending processes by the lease id in their environment, real GPUs through ``nvidia-smi``,
simulated GPUs, the stand-in ``nvidia-smi`` that shows them, and ``busy``, which makes them work.
Never here: what any backend needs (``gpuspawner.backends``). What a workspace imports (this file, ``simulated``,
``standin``) uses the standard library alone.
"""

from gpuspawner.backends.local.simulated import busy

__all__ = ["busy"]
