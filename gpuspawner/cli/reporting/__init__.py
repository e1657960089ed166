"""``gpuspawner report``: what a month's GPUs went to, for whoever pays for them."""
