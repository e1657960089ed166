"""The stand-in ``nvidia-smi``, which shows a workspace's simulated GPUs in the real tool's formats.

It imports only modules that an interpreter loads anyway. It runs at each look, four times a sample, and ``pathlib``,
``json`` and ``typing`` would take two thirds of its time. The formats are those of driver 590, and ``tests/backends``
compares them with real captures.
"""
