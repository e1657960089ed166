"""Leases made from what runs: of a server that has none, or after the store was lost."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import uuid
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpuspawner.backends.base import Running
from gpuspawner.core.gpus import Slot
from gpuspawner.core.lease import Key, Lease, Phase
from gpuspawner.core.request import Request
from gpuspawner.service.hub import HubServer

_request: TypeAdapter[Request] = TypeAdapter(Request)
_slots: TypeAdapter[tuple[Slot, ...]] = TypeAdapter(tuple[Slot, ...])


LONGEST_DOCUMENT_CHARACTERS = 65536
SHARE = re.compile(r"1|1/[1-9][0-9]{0,3}")
"""How a share is written. Anything else is no share: a negative one would make room on a GPU that is full."""


def lease_variables(lease: Lease, secret: bytes) -> dict[str, str]:
    """Return the variables a workspace carries: the lease's id, and all that rebuilds the lease, signed.

    They lie in its user's hands: unsigned, anybody could ask in another's name, or with an older place.
    """
    document = {
        "user": lease.user,
        "user_created": lease.key.user_created,
        "server": lease.key.server,
        "request": asdict(lease.request),
        "options": dict(lease.options),
        "asked_at": lease.asked_at,
        "granted_at": lease.granted_at,
        "slots": [[slot.gpu, str(slot.share)] for slot in lease.slots],
    }
    text = json.dumps(document, separators=(",", ":"))
    return {
        "GPUSPAWNER_LEASE_ID": lease.id,
        "GPUSPAWNER_ATTEMPT": str(lease.attempt),
        "GPUSPAWNER_HUB_ID": lease.key.hub,
        "GPUSPAWNER_LEASE": text,
        "GPUSPAWNER_LEASE_SIGNATURE": _signature(secret, lease.key.hub, lease.id, text),
    }


def _signature(secret: bytes, hub: str, lease: str, document: str) -> str:
    signed = f"lease:{hub}:{lease}:{document}".encode("utf-8", "replace")
    return hmac.new(secret, signed, hashlib.sha256).hexdigest()


def claimed_slots(running: Running) -> tuple[Slot, ...]:
    """Return the slots that a workspace says it uses, of any hub on this machine: what is said badly is not said."""
    text = running.environment.get("GPUSPAWNER_LEASE", "")
    if len(text) > LONGEST_DOCUMENT_CHARACTERS:
        return ()
    try:
        stored = [(str(gpu), str(share)) for gpu, share in json.loads(text)["slots"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()
    return tuple(Slot(gpu, Fraction(share)) for gpu, share in stored if SHARE.fullmatch(share))


def rebuilt_lease(running: Running, hub_id: str, secret: bytes, now: float) -> Lease | None:
    """Return the lease that a workspace of this hub carries, as starting: hub and backend then say what it is.

    None where it is another hub's, or where this service did not sign what it says.
    """
    text = running.environment.get("GPUSPAWNER_LEASE", "")
    given = running.environment.get("GPUSPAWNER_LEASE_SIGNATURE", "")
    due = _signature(secret, hub_id, running.lease_id, text)
    if not hmac.compare_digest(given.encode("utf-8", "replace"), due.encode()):
        return None
    try:
        document: dict[str, Any] = json.loads(text)
        return Lease(
            id=running.lease_id,
            key=Key(hub_id, str(document["user_created"]), str(document["server"])),
            user=str(document["user"]),
            request=_request.validate_python(document["request"]),
            options=dict(document["options"]),
            asked_at=float(document["asked_at"]),
            granted_at=float(document["granted_at"]),
            phase=Phase.STARTING,
            phase_since=now,
            heard_at=now,
            attempt=running.attempt,
            slots=_slots.validate_python([{"gpu": gpu, "share": share} for gpu, share in document["slots"]]),
            adopted=True,
        )
    except (ValueError, KeyError, TypeError, ValidationError):
        return None


def adopted_server(key: Key, server: HubServer, now: float) -> Lease:
    """Return the lease of a server that ran before gpuspawner did: no GPU known, no deadline until its next start."""
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
