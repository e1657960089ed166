"""Custom resources as a second door to the same service: what ``core.resources`` decides is carried out here.

It is part of the service, whose one-writer election it needs: a process of its own would need another one.
"""
