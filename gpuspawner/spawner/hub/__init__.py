"""How a hub is set up for one service: its port, its folder, and what would work against it."""
