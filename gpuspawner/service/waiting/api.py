"""The API of the queue."""

from __future__ import annotations

from gpuspawner.service.waiting import models
from gpuspawner.service.waiting.presenter import present_queue
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

router = Router()


@router.get("/api/v1/queue", Permission.USE)
async def list_queue(actor: Actor) -> models.Queue:
    """Answer the waiting requests in order: kind, number of GPUs, position and times.

    One's own requests, and for administrators all, carry names and reasons. Kinds of GPU that the reader may not have
    are left out.
    """
    kinds = (await actor.visible_catalog()).gpus
    return present_queue(actor.state, actor.state.registry, actor.person, kinds)
