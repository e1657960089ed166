"""The adapter to a batch scheduler that owns queue, quota and priority, by the contract of docs/scheduler.openapi.yaml.

Belongs here: telling it what is claimed, hearing what stands, and making of that what the seam answers.
Never here: who goes before whom; leases' phases.
"""
