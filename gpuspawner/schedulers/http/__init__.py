"""Optional: an external batch scheduler that owns queue, quota and priority.

It speaks the contract of docs/scheduler.openapi.yaml.
"""
