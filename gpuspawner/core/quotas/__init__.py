"""How much somebody may have: quotas at one time, budgets of a period, what is charged, what a namespace leaves.

Never who goes first, which is the queue's.
"""
