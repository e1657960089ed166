"""What a workspace's image lacks: the GPU monitor, or what its template opens. The workspace tells it once it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tornado.web import HTTPError

from gpuspawner.catalog.models import MONITOR, OPENS
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.rest import route
from gpuspawner.service.api.rest.shapes import lacking as shapes

MAY_LACK = (*OPENS, MONITOR)


class Lacking(ApiHandler):
    """What does not work in a workspace, for the workspace itself."""

    @route(answer=shapes.Lacking, body=shapes.LackingBody, keyed=False)
    async def post(self, workspace: str) -> None:
        """Keep what is told, and answer it: pages and the command line offer only the rest."""
        lacks = self.fields(*shapes.LackingBody.model_fields).get("lacks")
        lease = await self.own(workspace)
        if self.must().lease != lease.id:
            raise HTTPError(403, reason="Only the workspace itself tells what it lacks.")
        if not isinstance(lacks, list) or not all(one in MAY_LACK for one in lacks):
            raise RequestRefused("lacks", quoted(lacks), ", ".join(MAY_LACK), "Name what does not work.")
        newest = self.parts.registry.get(lease.id)
        if newest is not None and newest.live and newest.lacks != tuple(lacks):
            await self.parts.registry.save(replace(newest, lacks=tuple(lacks)))
        self.answer({"lacks": lacks})


ROUTES: list[Any] = [(r"/api/v1/workspaces/([^/]+)/lacking", Lacking)]
