"""``gpuspawner doctor``: ask, judge, tell."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from gpuspawner import __version__
from gpuspawner.backends.local import nvidia
from gpuspawner.backends.local.mig import MigDevice
from gpuspawner.catalog import Catalog, load_catalog
from gpuspawner.cli.adopting.running_hub import running_hubs
from gpuspawner.cli.asking import token_of
from gpuspawner.cli.doctor import of_cuda, of_hub, of_sources
from gpuspawner.cli.doctor.asking import answered
from gpuspawner.cli.doctor.findings import Answer, Finding, State, bad, unknown
from gpuspawner.cli.doctor.of_cluster import of_fleet
from gpuspawner.cli.doctor.of_scheduler import of_scheduler
from gpuspawner.cli.errors import INVALID, InvalidError, RefusedError
from gpuspawner.core.errors import CatalogError, Unavailable
from gpuspawner.core.gpus.fleet import Fleet
from gpuspawner.core.proof import hub_token

IN_ADDRESS = (
    "a name or password stands in the address, which lists of processes and logs would show. Take it out: a file with "
    "the token is named by --token-file."
)
MARKS = {State.GOOD: "good", State.BAD: "BAD", State.UNKNOWN: "?"}


def doctor(arguments: argparse.Namespace) -> int:
    """Print every finding, what is bad first; return 1 where anything is."""
    for option, url in (("--hub", arguments.hub), ("--service", arguments.service)):
        if "@" in url:
            raise InvalidError(f"{option}: {IN_ADDRESS}")
    token = _token(arguments)
    found = sorted(_examined(arguments, token), key=lambda one: [State.BAD, State.UNKNOWN, State.GOOD].index(one.state))
    if arguments.json:
        print(json.dumps({"findings": [{**asdict(one), "state": one.state.value} for one in found]}, indent=1))
    else:
        for one in found:
            print(f"{MARKS[one.state]:>4}  {one.check}: {one.words}")
            if one.remedy:
                print(f"      -> {one.remedy}")
    return INVALID if any(one.state is State.BAD for one in found) else 0


def _token(arguments: argparse.Namespace) -> str:
    """Return the token to ask with: of a file, of the secret, of the environment; "" where there is none."""
    if arguments.token_file:
        return token_of(Path(arguments.token_file))
    if arguments.secret_file:
        try:
            return hub_token(bytes.fromhex(Path(arguments.secret_file).read_text(encoding="ascii").strip()))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not of 64 hexadecimal digits"
            raise RefusedError(f"{arguments.secret_file} cannot be read as a secret: {reason}.") from error
    return next((os.environ[name] for name in ("GPUSPAWNER_TOKEN", "JUPYTERHUB_API_TOKEN") if name in os.environ), "")


def _examined(arguments: argparse.Namespace, token: str) -> Iterator[Finding]:
    url = arguments.hub.rstrip("/")
    hub, person = answered(f"{url}/"), answered(f"{url}/user", token)
    yield of_hub.hub_reached(url, hub)
    if hub.ok:
        yield of_hub.token_known(person)
        yield of_hub.scopes(person)
        yield of_hub.cullers(answered(f"{url}/services", token))
        yield of_hub.clock("The hub", hub)
    yield from of_hub.restarts(running_hubs())
    service = arguments.service.rstrip("/")
    ready = answered(f"{service}/readyz")
    yield of_hub.service_ready(service, ready)
    if ready.status:
        yield of_hub.clock("The service", ready)
    base = urlsplit(url).path.removesuffix("/hub/api") if hub.status else ""
    version = answered(f"{service}{base}/services/gpu/api/v1/", token) if ready.status else Answer(0)
    yield from of_hub.below_prefix(base, version) if ready.ok else ()
    yield from of_hub.public_address(version)
    catalog: Catalog | None = None
    if arguments.catalog:
        try:
            catalog = load_catalog(arguments.catalog)
        except CatalogError as error:
            remedy = f"gpuspawner check {arguments.catalog} lists all that is wrong: {error.problems[0]}"
            yield bad("catalog", f"{arguments.catalog} cannot be used.", remedy)
    else:
        yield unknown("catalog", "Whether the catalog fits the GPUs was not looked at.", "Name it by --catalog.")
    yield from of_scheduler(catalog)
    yield from of_sources.of_exporter(catalog)
    yield from _of_monitors(f"{service}{base}", token, catalog) if ready.ok else ()
    if not arguments.kubernetes:
        yield from of_hub.versions(__version__, hub, version, None)
        yield from _of_machine(catalog)
        return
    try:
        from gpuspawner.cli.doctor.asking_cluster import examined  # noqa: PLC0415 - an extra of the package
    except ImportError as error:
        yield bad("API server", f"{error.name} is not installed.", "pip install '.[kubernetes]' in a checkout")
        return
    findings, kubernetes = asyncio.run(examined(arguments, catalog))
    yield from findings
    yield from of_hub.versions(__version__, hub, version, kubernetes)


def _of_monitors(service: str, token: str, catalog: Catalog | None) -> Iterator[Finding]:
    """Yield in which running workspaces the GPU monitor does not run."""
    if catalog is not None and catalog.gpus and not catalog.simulated:
        yield from of_sources.monitors_running(answered(f"{service}/services/gpu/api/v1/workspaces?all=true", token))


def _of_machine(catalog: Catalog | None) -> Iterable[Finding]:
    """Return what this machine's GPUs are to the catalog."""
    command = nvidia.find()
    if catalog is None or catalog.simulated or not catalog.gpus:
        return []
    if command is None:
        words = "The catalog offers GPUs, and this machine has no nvidia-smi."
        return [
            bad("GPUs", words, "Install the driver, or write simulated: to try it without. On a cluster: --kubernetes.")
        ]
    try:
        rows, parts, version = asyncio.run(_asked(command))
    except Unavailable as error:
        return [bad("GPUs", str(error), "Mend the driver: nvidia-smi must list the GPUs.")]
    gpus = nvidia.to_gpus(rows, (), (), catalog.gpus.values(), os.uname().nodename, parts)
    faults = [
        bad("GPUs", f"GPU {row.index} ({row.name}): {row.fault.words}.", _sentence(row.fault.remedy))
        for row in rows
        if row.fault
    ]
    cuda = of_cuda.driver_supports(version.driver, version.cuda, _cuda_needed(catalog)) if version else ()
    return [*faults, *of_fleet(catalog.gpus, Fleet(gpus, complete=True)), *cuda, of_sources.monitor_here()]


async def _asked(
    command: str,
) -> tuple[list[nvidia.Row], Mapping[str, tuple[MigDevice, ...]], nvidia.DriverVersion | None]:
    rows = await nvidia.listing(command)
    return rows, await nvidia.parts(command, rows), await nvidia.driver_version(command)


def _cuda_needed(catalog: Catalog) -> dict[str, of_cuda.CudaVersion]:
    """Return the CUDA version of each image of a template with GPUs, and of the Python that runs this."""
    installed = {one.metadata["Name"] or "": one.version for one in metadata.distributions()}
    own = of_cuda.cuda_of_packages(installed)
    packages = {"this Python's packages": own} if own else {}
    return {**packages, **of_cuda.cuda_of_templates(catalog, catalog.gpus)}


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
