"""Custom resources as a second interface of the service (optional).

The service decides everything, because only one writer is elected. A separate process may read and write the resources
for it (``relay``): it sends what it sees, and the answer says what to write.
"""
