"""The queue: its order, placement, quotas and what a namespace leaves."""
