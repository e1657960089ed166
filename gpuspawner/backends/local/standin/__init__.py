"""The stand-in ``nvidia-smi``: a workspace's own simulated GPUs in the real tool's formats.

Belongs here: options (``options``), what each field says (``board``), and the forms: table, CSV, report, XML.
Never here: real GPUs, or anything but the few modules that an interpreter imports anyway: it starts each time that
somebody looks, four times a sample, and ``pathlib``, ``json`` and ``typing`` are two thirds of its time.
The forms are those of driver 590, checked against real captures by ``tests/backends``.
"""
