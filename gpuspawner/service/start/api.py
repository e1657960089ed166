"""The API of starts: who is signed in, what could be had, and what a start would do."""

from __future__ import annotations

from gpuspawner import __version__
from gpuspawner.catalog import teams_of
from gpuspawner.core.quotas.limits import Requester
from gpuspawner.service.quotas.presenter import present_bounds
from gpuspawner.service.rules.server_names import read_server
from gpuspawner.service.start import models
from gpuspawner.service.start.check import check_start
from gpuspawner.service.start.offers import coming_reservations, present_offer
from gpuspawner.service.start.options import StartBody
from gpuspawner.service.start.substitutes import present_teams
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission, Role
from gpuspawner.version import commit

router = Router()


@router.get("/api/v1/?", Permission.USE)
async def get_account(actor: Actor) -> models.Account:
    """Return your name, rights and teams, and the version of the service."""
    state, person = actor.state, actor.person
    teams, team = await present_teams(state, person.owner, await actor.groups())
    return models.Account(
        version=__version__,
        commit=commit() or None,
        user=person.name,
        admin=Role.ADMINISTRATOR in person.roles,
        roles=[role.value for role in Role if role in person.roles],
        pages=state.page_url or None,
        teams=teams,
        team=team,
    )


@router.get("/api/v1/offers", Permission.USE, serves_forms=True)
async def list_offers(actor: Actor) -> models.Offers:
    """Return each GPU kind that you may have, with its free GPUs. null means unknown.

    GPUs that are held for others are not free. The answer also has the reader's quota, their teams, and the substitutes
    that they accepted last, by template.
    """
    state, person = actor.state, actor.person
    catalog, groups, asker = await actor.visible_catalog(), await actor.groups_shown(), await actor.asker()
    teams, team = await present_teams(state, person.owner, groups)
    coming = coming_reservations(state, asker)
    bounds = present_bounds(
        state,
        [
            Requester(person.name, person.owner.user_created, one)
            for one in teams_of(state.catalog.rules, groups) or ("",)
        ],
    )
    consents = await state.allocator.asking.last_consents(person.owner)
    return models.Offers(
        offers=[
            present_offer(one, state, coming.get(one.kind, ""))
            for one in state.queue.offers_to(asker)
            if one.kind in catalog.gpus
        ],
        currency=catalog.rules.currency,
        age_seconds=actor.now - state.scheduler.fleet.observed_at if state.scheduler.fleet.complete else None,
        held=sum(x.request.count for x in state.registry if person.owns(x)),
        consents={name: list(kinds) for name, kinds in consents.items()},
        quota=[one for found in bounds for one in found],
        teams=teams,
        team=team,
    )


@router.post("/api/v1/check", Permission.USE, idempotent=False, serves_forms=True)
async def check(actor: Actor, *, body: StartBody) -> models.Outlook:
    """Return what a start would do now, or everything that is wrong with it. Nothing is requested."""
    options = body.options()
    server = await read_server(actor.state, actor.person.name, options.pop("server", ""))
    return await check_start(actor.state, actor.person, options, server)


@router.get("/api/v1/groups", Permission.SEE_FLEET)
async def list_groups(actor: Actor) -> models.Groups:
    """Return the groups of the hub, and a sentence for each group of the catalog that the hub lacks."""
    members = actor.state.members
    await members.look()
    return models.Groups(groups=sorted(members.there), missing=list(members.missing()))
