"""``gpuspawner server doctor``: the examination and its output."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from gpuspawner import __version__
from gpuspawner.adoption.doctor import hub_checks, source_checks
from gpuspawner.adoption.doctor.cluster_checks import of_fleet, wrong_compute
from gpuspawner.adoption.doctor.findings import Answer, DoctorOptions, Finding, State, bad, fetch_answer, unknown
from gpuspawner.adoption.doctor.hub_checks import running_hubs
from gpuspawner.adoption.doctor.source_checks import of_scheduler
from gpuspawner.backends.local import nvidia
from gpuspawner.backends.local.nvidia import MigDevice
from gpuspawner.backends.machine import find_listener, is_own_address
from gpuspawner.catalog import Catalog, load_catalog
from gpuspawner.cli import base
from gpuspawner.cli.errors import INVALID, InvalidError, RefusedError
from gpuspawner.cli.logins import read_token
from gpuspawner.cli.output import print_json, say
from gpuspawner.core.authentication import derive_hub_token
from gpuspawner.core.errors import CatalogError, Unavailable
from gpuspawner.core.gpus.fleet import Fleet

IN_ADDRESS = (
    "the address has a name or a password, which lists of processes and logs would show. Remove it. Name a file with "
    "the token by --token-file."
)
MARKS = {State.GOOD: "good", State.BAD: "BAD", State.UNKNOWN: "?"}


@base.command(
    "doctor",
    examples="""\
gpuspawner server doctor --secret-file gpuspawner-data/secret --catalog catalog.yaml
gpuspawner server doctor --kubernetes --namespace jhub --as system:serviceaccount:jhub:hub \\
    --hub http://127.0.0.1:8081/hub/api --service http://127.0.0.1:9470 --catalog catalog.yaml""",
)
@click.option(
    "--hub",
    metavar="URL",
    envvar="JUPYTERHUB_API_URL",
    default="http://127.0.0.1:8081/hub/api",
    show_default=True,
    help="The hub's API.",
)
@click.option(
    "--service", metavar="URL", default="http://127.0.0.1:9470", show_default=True, help="The service's own port."
)
@click.option("--token-file", metavar="FILE", help="A file with a token of the hub.")
@click.option("--secret-file", metavar="FILE", help="The secret of hub and service, which makes the service's token.")
@click.option("--catalog", metavar="FILE", help="Check whether its GPU kinds exist.")
@click.option("--kubernetes", is_flag=True, help="Examine a cluster, too.")
@base.cluster_options
@click.option("--namespace", metavar="NAME", default="jhub", show_default=True, help="The workspaces' namespace.")
@click.option("--as", "account", metavar="ACCOUNT", help="Check the rights of this account, as kubectl --as does.")
@base.json_option
def doctor(*, as_json: bool, **options: Any) -> int:
    """Examine hub, service and cluster, and say what to repair.

    The token comes from --token-file, --secret-file, $GPUSPAWNER_TOKEN or $JUPYTERHUB_API_TOKEN. With the service's
    own token the command checks the service's scopes, with an administrator's also the hub's other services. It
    changes nothing. The exit code is 1 if anything is bad.
    """
    arguments = DoctorOptions(**options)
    for option, url in (("--hub", arguments.hub), ("--service", arguments.service)):
        if "@" in url:
            raise InvalidError(f"{option}: {IN_ADDRESS}")
    token = _token(arguments)
    found = sorted(_examined(arguments, token), key=lambda one: [State.BAD, State.UNKNOWN, State.GOOD].index(one.state))
    if as_json:
        print_json({"findings": [{**asdict(one), "state": one.state.value} for one in found]})
    else:
        for one in found:
            say(f"{MARKS[one.state]:>4}  {one.check}: {one.words}")
            if one.remedy:
                say(f"      -> {one.remedy}")
    return INVALID if any(one.state is State.BAD for one in found) else 0


def _token(arguments: DoctorOptions) -> str:
    """Return the token: of a file, of the secret, or of the environment, else ""."""
    if arguments.token_file:
        return read_token(Path(arguments.token_file))
    if arguments.secret_file:
        try:
            return derive_hub_token(bytes.fromhex(Path(arguments.secret_file).read_text(encoding="ascii").strip()))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it does not consist of 64 hexadecimal digits"
            raise RefusedError(f"{arguments.secret_file} cannot be read as a secret: {reason}.") from error
    return next((os.environ[name] for name in ("GPUSPAWNER_TOKEN", "JUPYTERHUB_API_TOKEN") if name in os.environ), "")


def _examined(arguments: DoctorOptions, token: str) -> Iterator[Finding]:
    url = arguments.hub.rstrip("/")
    hub, person = fetch_answer(f"{url}/"), fetch_answer(f"{url}/user", token)
    yield hub_checks.hub_reached(url, hub)
    if hub.ok:
        yield hub_checks.token_known(person, token)
        if token:
            yield hub_checks.scopes(person)
        yield hub_checks.cullers(fetch_answer(f"{url}/services", token))
        yield hub_checks.clock("The hub", hub)
    yield from hub_checks.restarts(running_hubs(), _process_at(url))
    service = arguments.service.rstrip("/")
    ready = fetch_answer(f"{service}/readyz")
    yield hub_checks.service_ready(service, ready)
    if ready.status:
        yield hub_checks.clock("The service", ready)
    base = urlsplit(url).path.removesuffix("/hub/api") if hub.status else ""
    version = fetch_answer(f"{service}{base}/services/gpu/api/v1/", token) if ready.status else Answer(0)
    yield from hub_checks.below_prefix(base, version) if ready.ok else ()
    yield from hub_checks.public_address(version)
    if ready.ok:
        counted = fetch_answer(f"{service}{base}/services/gpu/api/v1/admin/secrets", token)
        yield from hub_checks.secrets_readable(counted)
    catalog: Catalog | None = None
    if arguments.catalog:
        try:
            catalog = load_catalog(arguments.catalog)
        except CatalogError as error:
            remedy = f"gpuspawner server check {arguments.catalog} lists all that is wrong: {error.problems[0]}"
            yield bad("catalog", f"{arguments.catalog} cannot be used.", remedy)
    else:
        yield unknown("catalog", "The catalog was not compared with the GPUs.", "Name it by --catalog.")
    yield from of_scheduler(catalog)
    yield from source_checks.of_exporter(catalog)
    yield from _of_monitors(f"{service}{base}", token, catalog) if ready.ok else ()
    if not arguments.kubernetes:
        yield from hub_checks.versions(__version__, hub, version, None)
        yield from _of_machine(catalog)
        return
    try:
        from gpuspawner.adoption.doctor.cluster_reader import examine_cluster  # noqa: PLC0415 - an extra of the package
    except ImportError as error:
        yield bad("API server", f"{error.name} is not installed.", "pip install '.[kubernetes]' in a checkout")
        return
    findings, kubernetes = asyncio.run(examine_cluster(arguments, catalog))
    yield from findings
    yield from hub_checks.versions(__version__, hub, version, kubernetes)


def _process_at(url: str) -> int | None:
    """Return the process of this machine that listens at an address, or None."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:  # not an address
        return None
    return find_listener(port).pid if is_own_address(host) else None


def _of_monitors(service: str, token: str, catalog: Catalog | None) -> Iterator[Finding]:
    """Yield a finding about the GPU monitor in running workspaces."""
    if catalog is not None and catalog.gpus and not catalog.simulated:
        yield from source_checks.monitors_running(
            fetch_answer(f"{service}/services/gpu/api/v1/workspaces?all=true", token)
        )


def _of_machine(catalog: Catalog | None) -> Iterable[Finding]:
    """Return the findings of this machine's GPUs."""
    command = nvidia.find()
    if catalog is None or catalog.simulated or not catalog.gpus:
        return []
    if command is None:
        words = "The catalog offers GPUs, and this machine has no nvidia-smi."
        return [
            bad("GPUs", words, "Install the driver, or write simulated: to try it without. On a cluster: --kubernetes.")
        ]
    try:
        rows, parts, version, compute = asyncio.run(_asked(command))
    except Unavailable as error:
        return [bad("GPUs", str(error), "Repair the driver: nvidia-smi must list the GPUs.")]
    gpus = nvidia.to_gpus(rows, (), (), catalog.gpus.values(), os.uname().nodename, parts, version)
    faults = [
        bad("GPUs", f"GPU {row.index} ({row.name}): {fault.words}.", _sentence(fault.remedy))
        for row in rows
        if (fault := nvidia.find_fault(row, parts.get(row.uuid, ())))
    ]
    cuda = source_checks.of_driver(*version, catalog, catalog.gpus, _cuda_of_packages_here())
    fleet = of_fleet(catalog.gpus, Fleet(gpus, complete=True))
    wrong = wrong_compute(catalog.gpus, ((gpu.pool, compute.get(gpu.id, "")) for gpu in gpus))
    return [*faults, *fleet, *wrong, *cuda, source_checks.monitor_here()]


async def _asked(
    command: str,
) -> tuple[list[nvidia.Row], Mapping[str, tuple[MigDevice, ...]], nvidia.DriverVersion, Mapping[str, str]]:
    rows = await nvidia.listing(command)
    version, compute = await nvidia.driver_version(command), await nvidia.compute_capabilities(command)
    return rows, await nvidia.read_mig_devices(command, rows), version, compute


def _cuda_of_packages_here() -> dict[str, source_checks.CudaVersion]:
    """Return the CUDA version of the Python that runs this."""
    installed = {one.metadata["Name"] or "": one.version for one in metadata.distributions()}
    own = source_checks.cuda_of_packages(installed)
    return {"this Python's packages": own} if own else {}


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
