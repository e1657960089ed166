"""Kinds of GPU that pods claim (dynamic resource allocation): their models, how values are read, and their checks.

Never here: how devices are matched or counted (``backends.kubernetes.devices``).
"""
