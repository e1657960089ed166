"""Claims of administrators and external schedulers on GPUs that others use: models, presenter and API."""
