"""Acts of administrators on workspaces, nodes and GPUs, each with a reason that the user reads; and the audit.

The effect of a restriction on the queue is in ``core/administering`` and ``service/rules/restrictions.py``.
"""
