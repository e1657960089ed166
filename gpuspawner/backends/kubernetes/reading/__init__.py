"""What objects of the API server say: pods, nodes, quotas and limits of a namespace, as values."""
