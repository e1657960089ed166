"""The stand-in ``nvidia-smi``: a workspace's own simulated GPUs in the real tool's formats.

Belongs here: options (``options``), what each field says (``board``), and the forms: table, CSV, report, XML.
Never here: real GPUs, or anything but the standard library: it starts each time somebody looks.
The forms are those of driver 590, checked against real captures by ``tests/backends``.
"""
