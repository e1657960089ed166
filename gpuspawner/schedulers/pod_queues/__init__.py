"""Volcano and KAI own the queue: a workspace's pod is made, and waits in their queue for a bounded time.

Belongs here: what they are told by the pod, and what their PodGroups say of it.
Never here: who goes before whom; leases' phases; how a pod is made.
"""
