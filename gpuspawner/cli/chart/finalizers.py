"""``gpuspawner crd --release-finalizers``: lets requests go where no service is there any more that would."""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import replace

from gpuspawner.backends.kubernetes.api import ApiRefused
from gpuspawner.backends.kubernetes.resources import FINALIZER, KIND, CustomResources
from gpuspawner.cli.adopting.cluster import settings_of
from gpuspawner.cli.errors import AwayError, RefusedError
from gpuspawner.core.errors import Unavailable

QUIET_SECONDS = 6.0
"""Without one that is held, and it is done: a service that still runs holds them again in its next round, of 2 s."""
PAUSE_SECONDS = 1.0
MOST_LOOKS = 20
"""That find some which are held: what somebody changed meanwhile is tried again, and a service ends some time."""


def release(arguments: argparse.Namespace) -> int:
    """Take the finalizer from all requests of a namespace; without ``--yes`` say how many have it."""
    where = arguments.namespace
    settings = settings_of(arguments.kubeconfig, arguments.context, where)
    resources = CustomResources(replace(settings, custom_resources=where))
    try:
        print(asyncio.run(_done(resources, where, yes=arguments.yes)))
    except Unavailable as error:
        if isinstance(error.__cause__, ApiRefused):
            rights = "this needs the rights to list and patch them, and to use the devgpuvmusers that they are of"
            raise RefusedError(f"{error}. {KIND.plural} in {where}: {rights}.") from error
        raise AwayError(f"{error} Name the way there: --kubeconfig FILE, --context NAME.") from error
    return 0


async def _done(resources: CustomResources, where: str, *, yes: bool) -> str:
    """Return what was done, in words. Raises Unavailable and RefusedError."""
    try:
        if yes:
            return f"{await _released(resources, where)} let go. No workspace was stopped."
        count = sum(one.held for one in await resources.as_now())
    finally:
        await resources.close()
    return (
        f"{_counted(count, where)} kept until the workspace has ended, by the finalizer {FINALIZER}. With --yes it is "
        "taken away, and no workspace stops. The service must be gone, or have customResources.enabled=false."
    )


async def _released(resources: CustomResources, where: str) -> str:
    """Let go what is held, until nothing is for a while; return how many there were."""
    gone, looks, quiet_since = set[str](), 0, time.monotonic()
    while time.monotonic() - quiet_since < QUIET_SECONDS:
        if held := [one for one in await resources.as_now() if one.held]:
            if looks == MOST_LOOKS:
                still = "They are held again: a service runs that has custom resources."
                what = f"Uninstall it from {where}, or set customResources.enabled=false, and try again."
                raise RefusedError(f"{still} {what}")
            for one in held:
                await resources.release(one)
            gone |= {one.uid for one in held}
            looks, quiet_since = looks + 1, time.monotonic()
        await asyncio.sleep(PAUSE_SECONDS)
    return _counted(len(gone), where)


def _counted(count: int, where: str) -> str:
    return f"1 {KIND.name} in {where} is" if count == 1 else f"{count} {KIND.name}s in {where} are"
