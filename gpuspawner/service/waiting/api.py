"""The API of the queue."""

from __future__ import annotations

from gpuspawner.service.waiting import models
from gpuspawner.service.waiting.accuracy import present_accuracy
from gpuspawner.service.waiting.presenter import present_queue
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

router = Router()


@router.get("/api/v1/queue", Permission.USE)
async def list_queue(actor: Actor) -> models.Queue:
    """Return the waiting requests in order: kind, number of GPUs, position and times.

    One's own requests, and for administrators all, carry names and reasons. Kinds of GPU that the reader may not have
    are left out.
    """
    kinds = (await actor.visible_catalog()).gpus
    return present_queue(actor.state, actor.state.registry, actor.person, kinds)


@router.get("/api/v1/admin/estimates", Permission.SEE_FLEET)
async def get_accuracy(actor: Actor) -> models.EstimateReport:
    """Return how often estimated starts were right in the last 30 days, by the length of the estimated wait.

    Requests that waited are counted, also those that still wait. An overdue start is wrong.
    """
    return present_accuracy(actor.state)
