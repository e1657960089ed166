"""What changes leases: the book of them, grants, ends and adoption."""
