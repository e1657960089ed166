"""The configuration of a hub with one service: its port, its folder, and settings that contradict it."""
