"""How often a service looks for garbage: objects that refer to each other, and that nothing else refers to."""

import gc

OBJECTS = 50_000
"""So many more than at the last look. By Python's own number, 700, each fifteenth decision in a fleet of 10,000 nodes
waited 4 ms until all leases were walked through, and a page of the console for longer."""


def look_seldom() -> None:
    """Leave alone what is loaded, which stays, and look at the rest once there is much of it."""
    gc.freeze()
    gc.set_threshold(OBJECTS)
