"""How often a service looks for garbage: objects that refer to each other, and that nothing else refers to."""

import gc

OBJECTS = 50_000
"""The number of new objects that starts a search. Python's default is 700. With it, one of fifteen decisions in a fleet
of 10,000 nodes waited 4 ms for the search. A page of the console waited longer."""


def look_seldom() -> None:
    """Leave alone what is loaded, which stays, and look at the rest once there is much of it."""
    gc.freeze()
    gc.set_threshold(OBJECTS)
