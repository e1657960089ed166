"""The API of claims on GPUs that others use: models, presenter and endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, ValidationInfo, WithJsonSchema, field_validator
from tornado.web import HTTPError

from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core import events
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.events import ClaimEvent
from gpuspawner.core.gpus.placement import used_shares
from gpuspawner.core.leases.lease import HOLDING, UP, Lease
from gpuspawner.core.queue.preemption import Preemption
from gpuspawner.core.rules import Account
from gpuspawner.core.units import show_bytes, show_duration
from gpuspawner.service.api.rest import Answer, Body
from gpuspawner.service.parts import Parts
from gpuspawner.service.preemption.preemptions import claimant_of, new_claim
from gpuspawner.service.preemption.words import state_words
from gpuspawner.service.store import AuditLine
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.inputs import InputContext, allows, refused
from gpuspawner.service.web.permissions import Permission

MAX_LISTED, MAX_GPUS, MAX_NAME_LETTERS = 50, 100_000, 120
MAX_AHEAD_SECONDS = 7 * 86400.0
"""The longest time ahead of a claim. A reservation must not end the work of others."""
ONLY_OUR_QUEUE = (
    "Only gpuspawner's own queue keeps these GPUs: pods that others make may take them first. Make the work that needs "
    "them as soon as the state is “held”."
)

router = Router()


# Models


class ClaimedGpu(Answer):
    """A GPU of a claim."""

    id: str
    node: str
    share: str
    free: bool


class Victim(Answer):
    """A workspace that ends for a claim, and the loss of its user."""

    id: str
    user: str
    server: str
    gpus: list[str]
    ends_at: float | None
    running_seconds: float | None
    idle_seconds: float
    loses: str
    returns: bool


class Claim(Answer):
    """A claim on GPUs that others use. They are kept free for the claimant."""

    id: str | None
    """Null for a dry run."""
    state: str
    words: str
    dry_run: bool
    kind: str
    title: str
    count: int
    for_: dict[Literal["external", "team", "user"], str] = Field(alias="for")
    """One of ``external``, ``team`` and ``user``, with its name."""
    by: str
    key: str
    now: float
    made_at: float
    ends_at: float | None
    free_at: float | None
    kept_until: float | None
    over_at: float | None
    gpus: list[ClaimedGpu]
    victims: list[Victim]
    note: str

    @property
    def claimant(self) -> str:
        """The claimant, as people read it."""
        ((kind, name),) = self.for_.items()
        return f"team {name}" if kind == "team" else name


class ClaimList(Answer):
    """Claims, the newest first."""

    preemptions: list[Claim]


def _soon(value: object, info: ValidationInfo[InputContext]) -> float | None:
    now = info.context.now
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and now < value <= now + MAX_AHEAD_SECONDS:
        return float(value)  # compared before the conversion, because JSON's numbers are unbounded
    raise refused("a time within the next 7 days, in seconds since 1970", "Leave it out, or give a later time.")


SoonTime = Annotated[float | None, PlainValidator(_soon), WithJsonSchema({"type": ["number", "null"]})]
PRINTABLE = Field(default=None, max_length=MAX_NAME_LETTERS)
KEY = (f"a text of at most {MAX_NAME_LETTERS} printable letters", "Use a random one, for example a UUID.")


class ClaimInput(Body):
    """A claim on GPUs, for a user, a team, or work outside the hub."""

    kind: str
    """The kind of GPU, as the catalog calls it."""
    count: int = allows(f"1 to {MAX_GPUS}", "Say how many GPUs are needed.", default=1, ge=1, le=MAX_GPUS)
    user: str | None = PRINTABLE
    team: str | None = PRINTABLE
    external: str | None = Field(default=None, max_length=MAX_NAME_LETTERS, validate_default=True)
    """The name of the work, for the users whose workspaces end for it."""
    by: SoonTime = None
    """Not needed before, in seconds since 1970."""
    hold_until: SoonTime = None
    """Until when they are kept, in seconds since 1970."""
    one_node: bool = True
    key: str = allows(*KEY, default="", max_length=MAX_NAME_LETTERS)
    """A repeated request with the same key, or the same ``Idempotency-Key``, makes no new claim."""
    dry_run: bool = False
    """Return the workspaces that it would end, without ending them."""

    @field_validator("external")
    @classmethod
    def _one_claimant(cls, external: str | None, info: ValidationInfo) -> str | None:
        names = {"user": info.data.get("user"), "team": info.data.get("team"), "external": external}
        named = {key: value for key, value in names.items() if value is not None}
        if len(named) != 1 or not all(named.values()):
            field, value = "for whom", quoted(named)
            raise refused("one of user, team, external", "Give exactly one of them.", field, value)
        if external is not None and not external.isprintable():
            raise refused("printable letters", "Name the work as people know it.")
        return external


# Presenter


def present_claim(
    state: Parts, claim: Preemption, victims: Sequence[Lease] | None = None, *, dry_run: bool = False
) -> Claim:
    """Return a claim. ``victims`` are the workspaces that it ends, None for those that are warned of it."""
    now, used, known = state.clock.now(), used_shares(state.registry), state.scheduler.fleet.by_id
    ends = state.preemptions.victims_of(claim) if victims is None else victims
    keeps_from_all = state.scheduler.capabilities_of(claim.kind).keeps_from_all
    return Claim(
        id=None if dry_run else claim.id,
        state=claim.state.value,
        words=_dry_run_words(claim, len(ends), state) if dry_run else state_words(claim, len(ends), now),
        dry_run=dry_run,
        kind=claim.kind,
        title=gpu_title(claim.kind, state.catalog),
        count=claim.asked,
        for_=_claimant(claim),  # type: ignore[call-arg]  # mypy knows the alias alone
        by=claim.by,
        key=claim.key,
        now=now,
        made_at=claim.made_at,
        ends_at=claim.ends_at,
        free_at=claim.free_at,
        kept_until=claim.kept_until,
        over_at=claim.over_at,
        gpus=[
            ClaimedGpu(
                id=slot.gpu,
                node=known[slot.gpu].node if slot.gpu in known else "",
                share=str(slot.share),
                free=used.get(slot.gpu, 0) + slot.share <= 1,
            )
            for slot in claim.slots
        ],
        victims=[_victim(state, lease, now) for lease in ends],
        note="" if keeps_from_all or not claim.live else ONLY_OUR_QUEUE,
    )


def _dry_run_words(claim: Preemption, ends: int, state: Parts) -> str:
    title = gpu_title(claim.kind, state.catalog)
    if not ends:
        return f"{claim.asked} {title} can be had without ending anything. Nothing was done."
    who = "1 workspace" if ends == 1 else f"{ends} workspaces"
    return f"{claim.asked} {title} can be had by ending {who}. Nothing was done."


def _claimant(claim: Preemption) -> dict[str, str]:
    if claim.external:
        return {"external": claim.external}
    return {"team": claim.account.team} if claim.account and claim.account.team else {"user": claim.user}


def _victim(state: Parts, lease: Lease, now: float) -> Victim:
    return Victim(
        id=lease.id,
        user=lease.user,
        server=lease.key.server,
        gpus=[slot.gpu for slot in lease.slots],
        ends_at=None if lease.notice is None or lease.phase not in UP else lease.notice.at,
        running_seconds=None if lease.running_at is None else now - lease.running_at,
        idle_seconds=lease.streak.idle_seconds,
        loses=_loses(state, lease, now),
        returns=lease.phase in HOLDING and state.allocator.returns(lease),
    )


def _loses(state: Parts, lease: Lease, now: float) -> str:
    """Return in a sentence what the user of a workspace loses, by the newest sample."""
    newest = state.sampler.newest(lease.id)
    ran = "" if lease.running_at is None else f" of {show_duration(now - lease.running_at)}"
    found = [f"running kernels{ran}"]
    used = [row.memory_used_bytes for row in newest.values() if row.memory_used_bytes is not None]
    if used:
        found.append(f"{show_bytes(sum(used))} on its GPUs")
    row = next(iter(newest.values()), None)
    active = [str(one["words"]) for one in (row.soft or {}).values() if one.get("active")] if row else []
    if active:
        found.append("; ".join(active))
    idle = lease.streak.idle_seconds
    words = ", ".join(found)
    return f"{words[0].upper()}{words[1:]}; files stay.{f' Idle for {show_duration(idle)}.' if idle else ''}"


# Endpoints


@router.get("/api/v1/preemptions", Permission.SEE_CLAIMS)
async def list_claims(actor: Actor) -> ClaimList:
    """Return the last claims, newest first."""
    found = await actor.state.preemptions.last(MAX_LISTED)
    return ClaimList(preemptions=[present_claim(actor.state, one) for one in found])


@router.post("/api/v1/preemptions", Permission.CLAIM, status=201, other_status=200, idempotent=False, audit="preempt")
async def make_claim(actor: Actor, *, body: ClaimInput) -> tuple[Claim, int]:
    """Make a claim, and return it with the workspaces that it ends. 200 if it exists, 409 if no GPUs can cover it.

    With ``dry_run`` nothing is done.
    """
    state, kinds = actor.state, actor.state.scheduler.kinds
    if body.kind not in kinds:
        raise RequestRefused("kind", quoted(body.kind), ", ".join(kinds), "Name one of the catalog's kinds of GPU.")
    claim = new_claim(
        actor.person.name,
        actor.now,
        kind=body.kind,
        count=body.count,
        account=await _account(actor, body),
        external=body.external or "",
        user=body.user or "",
        ends_at=body.by,
        hold_until=body.hold_until,
        one_node=body.one_node,
        key=_claim_key(body.key or actor.idempotency_key),
    )
    if body.dry_run:
        preview, plan = state.preemptions.preview(claim)
        return present_claim(state, preview, plan.victims, dry_run=True), 200
    made = await state.preemptions.make(claim, [_audit_entry(actor, claim, events.ClaimMade)])
    return present_claim(state, made), 201 if made.id == claim.id else 200


def _claim_key(key: str) -> str:
    if len(key) > MAX_NAME_LETTERS or not key.isprintable():
        raise RequestRefused("key", quoted(key), *KEY)
    return key


async def _account(actor: Actor, body: ClaimInput) -> Account | None:
    teams = actor.state.catalog.rules.teams
    if body.team and body.team not in teams:
        raise RequestRefused("team", quoted(body.team), ", ".join(teams) or "none", "Name a team of the catalog.")
    if body.user:
        return Account("", (await actor.find_user(body.user)).user_created)
    return Account(body.team) if body.team else None


@router.get("/api/v1/preemptions/{claim}", Permission.SEE_CLAIMS)
async def get_claim(actor: Actor, claim: str) -> Claim:
    """Return a claim, with the workspaces that it ends and the GPUs that are free."""
    return present_claim(actor.state, await _find(actor, claim))


@router.delete("/api/v1/preemptions/{claim}", Permission.CLAIM, repeatable=True)
async def give_up(actor: Actor, claim: str) -> Claim:
    """Cancel a claim, and return it. Its workspaces continue. 409 if it was claimed or has lapsed."""
    found = await _find(actor, claim)
    over = await actor.state.preemptions.give_up(found, [_audit_entry(actor, found, events.ClaimGivenUp)])
    return present_claim(actor.state, over)


@router.post("/api/v1/preemptions/{claim}/claimed", Permission.CLAIM, repeatable=True)
async def claim_gpus(actor: Actor, claim: str) -> Claim:
    """Record that the claimant uses the GPUs. Return the claim. 409 if they are not free yet, or it is over."""
    found = await _find(actor, claim)
    over = await actor.state.preemptions.claimed(found, [_audit_entry(actor, found, events.ClaimServed)])
    return present_claim(actor.state, over)


async def _find(actor: Actor, claim_id: str) -> Preemption:
    found = await actor.state.preemptions.get(claim_id)
    if found is None:
        raise HTTPError(404, reason=f"There is no claim with the id {claim_id[:40]}.")
    return found


def _audit_entry(actor: Actor, claim: Preemption, event: type[ClaimEvent]) -> AuditLine:
    made = event(claim.asked, gpu_title(claim.kind, actor.state.catalog), claimant_of(claim))
    return actor.audit_entry(made, claim.user, claim.kind)
