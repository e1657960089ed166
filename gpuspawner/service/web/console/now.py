"""The first page of the console."""

from __future__ import annotations

from collections.abc import Sequence

from gpuspawner.core.administration import RestrictionKind
from gpuspawner.service.administration.gpu_map import LETTERS
from gpuspawner.service.administration.overview import GPUS, gpu_rows, now_view
from gpuspawner.service.administration.restrictions import present_restriction
from gpuspawner.service.web.admin_page import ConsolePage, ListPage
from gpuspawner.service.web.lists import Row, read_wanted

LAST_ENDED = 100
"""Among so many that ended last it is seen whether a template fails."""


class NowPage(ConsolePage):
    """GET: what does not work, the map of nodes and GPUs, the next ends, who waits and who borrows."""

    here = "now"

    async def get(self) -> None:
        """Answer the page."""
        parts, wanted = self.parts, read_wanted(GPUS, self.asked())
        ended = await parts.store.read(parts.store.leases.ended, None, LAST_ENDED)
        disputed = await parts.store.read(parts.store.leases.disputed, None)
        # From here on nothing is awaited: all that the page says is of one moment.
        in_force = parts.restrictions.in_force()
        self.show(
            "console_now.html",
            wanted=wanted,
            letters=LETTERS,
            restrictions=len(in_force),
            drains={
                one.target: present_restriction(parts, one) for one in in_force if one.measure is RestrictionKind.DRAIN
            },
            **now_view(parts, wanted, ended, disputed),
        )


class GpusPage(ListPage):
    """GET: the map as rows, one a GPU."""

    here, table, title, switch = "now", GPUS, "GPUs", (("console/", "Map"), ("console/gpus", "List"))
    empty = "No GPU is seen."

    async def rows(self) -> Sequence[Row]:
        """Return them."""
        return gpu_rows(self.parts)
