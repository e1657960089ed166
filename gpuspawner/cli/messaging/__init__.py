"""``gpuspawner message``: what administrators tell people."""
