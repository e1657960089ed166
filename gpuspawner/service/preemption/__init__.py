"""Claims on GPUs that others use, by administrators, external schedulers and fair share, and their effects."""
