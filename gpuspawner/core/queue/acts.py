"""What happens to requests in the queue, as events of their history."""

from __future__ import annotations

from gpuspawner.core.leases.events import Text


class Passed(Text):
    """A request that was made later was granted GPUs before this one; ``text`` is which rule of the order let it."""

    name, words = "passed", "A later request went first"
