"""The GPU monitor: follows this workspace's GPUs, so that work of a fraction of a second counts."""
