"""The page on which a user changes the size of a running workspace. With JavaScript it opens as a dialog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuspawner.catalog.models import Catalog
from gpuspawner.catalog.requests.resolution import AllRefused
from gpuspawner.catalog.requests.visibility import price_words
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.units import show_bytes, show_cpu
from gpuspawner.service.web.base import PageHandler
from gpuspawner.service.web.permissions import Permission
from gpuspawner.service.workspaces import models
from gpuspawner.service.workspaces.presenter import present_workspace
from gpuspawner.service.workspaces.sizes import SizeQuery, delete_size, post_size, preview_size

ORIGIN = "the page of its size"
FIELDS = ("gpu", "count", "cpu", "memory")
MAX_LETTERS = 40


@dataclass(frozen=True)
class Bounds:
    """The GPUs that a template offers with their titles, and the bounds of the other fields in words."""

    gpus: list[tuple[str, str]]
    most: int
    count: str
    cpu: str
    memory: str


def bounds_of(catalog: Catalog, lease: Lease) -> Bounds:
    """Return what the template of a workspace allows. ``catalog`` has what its user may see."""
    template, request = catalog.templates.get(lease.request.template), lease.request
    if template is None:
        raise Conflict("Its template is no longer offered, so its size cannot change.")
    kinds = [name for name in template.gpus if name in catalog.gpus]
    titles = {name: catalog.gpus[name].title for name in kinds}
    priced = [(name, ", ".join(filter(None, (titles[name], price_words(catalog, name))))) for name in kinds]
    ranges = [template.gpus[name] for name in kinds]
    least, most = min((one for one, _ in ranges), default=0), max((one for _, one in ranges), default=0)
    cpu, memory = template.bounds.cpu_cores, template.bounds.memory_bytes
    return Bounds(
        gpus=[*priced, ("none", "No GPU")],
        most=most,
        count=f"{least} to {most}, now {request.count}" if most > least else f"{most}, now {request.count}",
        cpu=f"{show_cpu(cpu[0])} to {show_cpu(cpu[1])} cores, now {show_cpu(request.cpu_cores)}",
        memory=f"{show_bytes(memory[0])} to {show_bytes(memory[1])}, now {show_bytes(request.memory_bytes)}",
    )


class SizePage(PageHandler):
    """GET: the form. POST: a preview of the change, the change itself, or its withdrawal, by ``step``."""

    async def get(self, lease_id: str) -> None:
        """Answer the form with the present size."""
        await self.show(await self.actor(ORIGIN).find_lease(lease_id, Permission.END))

    async def show(
        self,
        lease: Lease,
        *,
        found: models.SizeOutlook | None = None,
        problem: str = "",
        errors: dict[str, str] | None = None,
        status: int = 200,
    ) -> None:
        """Answer the form. ``found`` is the preview of what was typed, ``errors`` are by field."""
        actor, request = self.actor(ORIGIN), lease.request
        now = {
            "gpu": request.gpu or "none",
            "count": str(request.count or 1),
            "cpu": show_cpu(request.cpu_cores),
            "memory": show_bytes(request.memory_bytes),
        }
        self.render_page(
            "size.html",
            status,
            doc=present_workspace(self.parts, lease, actor.person),
            bounds=bounds_of(await actor.visible_catalog(), lease),
            typed={**now, **self._typed()},
            found=found,
            problem=problem,
            errors=errors or {},
        )

    async def post(self, lease_id: str) -> None:
        """Do what was asked. If it cannot be done, the form says why and keeps its values."""
        actor, step, typed = self.actor(ORIGIN), self.get_body_argument("step", "look"), self._typed()
        lease = await actor.find_lease(lease_id, Permission.END)
        page = f"{self.parts.prefix.rstrip('/')}/workspaces/{lease.id}"
        try:
            if step == "withdraw":
                await delete_size.act(actor, lease.id)
            elif step in {"do", "at once"}:
                await post_size.act(actor, lease.id, values={**typed, "at_once": step == "at once"})
            else:
                await self.show(lease, found=await preview_size(self.parts, lease, SizeQuery(**typed)))
                return
        except AllRefused as error:
            words = {one.field: f"{one.limit.capitalize()}. {one.remedy}" for one in error.refused}
            await self.show(lease, errors=words, problem=str(error), status=error.status)
        except RequestRefused as error:
            await self.show(lease, problem=str(error), status=error.status)
        except Conflict as error:
            await self.show(lease, problem=str(error), status=409)
        else:
            self.redirect(page, status=303)

    def _typed(self) -> dict[str, Any]:
        typed = {name: self.get_body_argument(name, "")[:MAX_LETTERS] for name in FIELDS}
        return {name: value for name, value in typed.items() if value}


ROUTES: list[Any] = [(r"/workspaces/([^/]+)/size", SizePage)]
"""The routes of this page."""
