"""The catalog's models as custom resources of Kubernetes: their definitions, and who may write them."""
