"""The signed document of its lease that each workspace carries, and how a lease is rebuilt from it."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.observations import HubServer, Running
from gpuspawner.core.leases.request import Request
from gpuspawner.core.rules import LatestEnd, Rate

_request: TypeAdapter[Request] = TypeAdapter(Request)
_slots: TypeAdapter[tuple[Slot, ...]] = TypeAdapter(tuple[Slot, ...])
_end: TypeAdapter[LatestEnd] = TypeAdapter(LatestEnd)


DOCUMENT = "GPUSPAWNER_LEASE"
"""The variable with the document."""
LONGEST_DOCUMENT_CHARACTERS = 65536
HUB_ID = re.compile(r"[0-9a-f]{32}")
SHARE = re.compile(r"1|1/[1-9][0-9]{0,3}")
"""The format of a share. Other texts are refused: a negative share would make room on a GPU that is full."""


@dataclass(frozen=True)
class HubIdentity:
    """The identity of this service: the hub's id, the secret that signs lease documents, and when it was made.

    ``secret_made_at`` is in seconds since the epoch, 0 if it is not known.
    """

    hub_id: str
    secret: bytes
    secret_made_at: float = 0.0

    def believes(self, running: Running) -> bool:
        """Return whether the document of a workspace is authentic.

        An authentic document is signed. Otherwise the backend must have kept it out of its user's reach since before
        the secret was made. This covers a secret that was lost and replaced.
        """
        if is_signed(self.secret, self.hub_id, running.lease_id, running.environment):
            return True
        is_ours = running.environment.get("GPUSPAWNER_HUB_ID") == self.hub_id
        is_older = running.kept_since is not None and running.kept_since < self.secret_made_at
        return is_ours and is_older and len(running.environment.get(DOCUMENT, "")) <= LONGEST_DOCUMENT_CHARACTERS


def lease_variables(lease: Lease, secret: bytes) -> dict[str, str]:
    """Return the variables of a workspace: the id of its lease, and a signed document that rebuilds the lease.

    Users can change the variables. Without a signature, a user could claim another name or an earlier position.
    """
    document = {
        "user": lease.user,
        "user_created": lease.key.user_created,
        "server": lease.key.server,
        "request": asdict(lease.request),
        "options": dict(lease.options),
        "asked_at": lease.asked_at,
        "granted_at": lease.granted_at,
        "given": lease.given,
        "rate": None if lease.rate is None else [str(lease.rate.gpus), str(lease.rate.price_per_hour)],
        "fixed_end": None if lease.fixed_end is None else asdict(lease.fixed_end),
        "slots": [[slot.gpu, str(slot.share)] for slot in lease.slots],
    }
    text = json.dumps(document, separators=(",", ":"))
    return {
        "GPUSPAWNER_LEASE_ID": lease.id,
        "GPUSPAWNER_ATTEMPT": str(lease.attempt),
        "GPUSPAWNER_HUB_ID": lease.key.hub,
        DOCUMENT: text,
        "GPUSPAWNER_LEASE_SIGNATURE": _signature(secret, lease.key.hub, lease.id, text),
    }


def is_signed(secret: bytes, hub: str, lease: str, variables: Mapping[str, str]) -> bool:
    """Return whether this hub's service has signed these variables of a lease."""
    text, given = variables.get(DOCUMENT, ""), variables.get("GPUSPAWNER_LEASE_SIGNATURE", "")
    return hmac.compare_digest(given.encode("utf-8", "replace"), _signature(secret, hub, lease, text).encode())


def _signature(secret: bytes, hub: str, lease: str, document: str) -> str:
    signed = f"lease:{hub}:{lease}:{document}".encode("utf-8", "replace")
    return hmac.new(secret, signed, hashlib.sha256).hexdigest()


def _claimed(running: Running) -> Mapping[str, Any]:
    """Return the document that a workspace carries, without a check of its signature. Empty if it is too long."""
    text = running.environment.get(DOCUMENT, "")
    return _parse(text) if len(text) <= LONGEST_DOCUMENT_CHARACTERS else {}


def _parse(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def claimed_slots(running: Running) -> tuple[Slot, ...]:
    """Return the slots that a workspace of any hub on this machine claims to use. Malformed slots are left out."""
    try:
        stored = [(str(gpu), str(share)) for gpu, share in _claimed(running).get("slots", ())]
    except (ValueError, TypeError):
        return ()
    return tuple(Slot(gpu, Fraction(share)) for gpu, share in stored if SHARE.fullmatch(share))


def claimed_kind(running: Running, request: Request) -> str:
    """Return the substitute that a workspace claims it was given, "" without one that its user consented to."""
    given = str(_claimed(running).get("given", ""))
    return given if given in request.substitutes else ""


def rebuild_lease(running: Running, identity: HubIdentity, now: float) -> Lease | None:
    """Return the lease that a workspace of this hub carries, as starting. Hub and backend then show its real phase.

    Return None for a workspace of another hub, or if its document is not authentic.
    """
    if not identity.believes(running):
        return None
    document = _parse(running.environment.get(DOCUMENT, ""))
    try:
        rate, fixed_end = document["rate"], document["fixed_end"]
        fixed = None if fixed_end is None else _end.validate_python(fixed_end)
        return Lease(
            id=running.lease_id,
            key=Key(identity.hub_id, str(document["user_created"]), str(document["server"])),
            user=str(document["user"]),
            request=_request.validate_python(document["request"]),
            options=dict(document["options"]),
            asked_at=float(document["asked_at"]),
            granted_at=float(document["granted_at"]),
            phase=Phase.STARTING,
            phase_since=now,
            heard_at=now,
            attempt=running.attempt,
            given=str(document["given"]),
            slots=_slots.validate_python([{"gpu": gpu, "share": share} for gpu, share in document["slots"]]),
            adopted=True,
            rate=None if rate is None else Rate(*map(Fraction, rate)),
            latest_end=fixed,
            fixed_end=fixed,
        )
    except (ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError, ValidationError):
        return None


def find_lost_identities(
    running: Iterable[Running], known: Collection[str], servers: Collection[tuple[str, str]], identity: HubIdentity
) -> tuple[str, ...]:
    """Return sentences for administrators about workspaces of this hub that run under an identity that it lost.

    Their users distinguish them from workspaces of another hub: a user's ``created`` belongs to one hub.

    Args:
        running: the workspaces that the backend sees.
        known: the ids of all leases.
        servers: the servers of this hub, by their user's ``created`` and their name.
        identity: the identity of this hub in ``data_dir``.
    """
    lost = Counter(
        (running.environment["GPUSPAWNER_HUB_ID"], running.kept_since is not None)
        for running in running
        if running.lease_id not in known
        and HUB_ID.fullmatch(running.environment.get("GPUSPAWNER_HUB_ID", ""))
        and _server_key(_claimed(running)) in servers
        and not identity.believes(running)
    )
    return tuple(_lost(count, hub, identity, kept=kept) for (hub, kept), count in sorted(lost.items()))


def _server_key(document: Mapping[str, Any]) -> tuple[str, str]:
    return str(document.get("user_created")), str(document.get("server"))


def _lost(count: int, hub: str, identity: HubIdentity, *, kept: bool) -> str:
    what = "1 workspace of this hub runs" if count == 1 else f"{count} workspaces of this hub run"
    again = "or have their users start them again."
    if hub == identity.hub_id:
        why, remedy = "signed by another secret than that of data_dir", f"Restore the file secret there, {again}"
    else:
        why = f"under the hub id {hub}, and data_dir has {identity.hub_id}: it was lost, or is another one"
        remedy = f"Restore it from a backup, {again}"
        if kept:
            remedy = f'Restore it from a backup, or write configure(hub_id="{hub}") with a new, empty data_dir.'
    return f"{what} {why}. Nothing measures their GPUs, and nothing stops them. {remedy}"


def lease_of_server(key: Key, server: HubServer, now: float) -> Lease:
    """Return the lease of a server that ran before gpuspawner. Its GPUs are unknown, and it has no deadline."""
    request = Request(server.user, "", "default", None, 0, 0.0, 0, 0)
    return Lease(
        id=uuid.uuid4().hex,
        key=key,
        user=server.user,
        request=request,
        options={},
        asked_at=now,
        granted_at=now,
        phase=Phase.RUNNING,
        phase_since=now,
        running_at=now,
        server_started=server.started,
        adopted=True,
    )
