"""Checks of hub and service: addresses, tokens, scopes, cullers, clocks, restarts and versions.

The hubs that run on this machine are found, too. Their configurations are read and not run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuspawner.adoption.doctor.findings import Answer, Finding, bad, good, unknown
from gpuspawner.spawner.hub.service import SERVICE, SERVICE_SCOPES
from gpuspawner.spawner.hub.settings import CULLER, REMEDY

FORBIDDEN = {401, 403}
OLDEST_HUB, NEWEST_HUB = (5, 5), 7
"""The supported versions, as in pyproject.toml. The second one is not supported."""
SKEW_SECONDS = 10.0
"""The largest difference of two clocks. Arbitrary: tickets and signed calls are valid for 60 s, and HTTP sends whole
seconds."""
ITS_ROLE = "Take its role out of c.JupyterHub.load_roles, too: the hub does not start with a role of a missing service."
AN_ADMINISTRATORS = "set GPUSPAWNER_TOKEN to an administrator's token with all scopes from the hub's page Token"
THE_SERVICES = (
    "Use the service's token: name the secret of hub and service by --secret-file, or the token by --token-file. Check "
    f"that it is the secret of this hub. To see the hub's other services, {AN_ADMINISTRATORS}."
)


def hub_reached(url: str, answer: Answer) -> Finding:
    """Judge the hub's answer to its API's root."""
    body = answer.body if isinstance(answer.body, dict) else {}
    if answer.ok and "version" in body:
        return good("hub", f"The hub answers at {url} (JupyterHub {body['version']}).")
    if answer.status:
        words = f"{url} answered {answer.status}, and is not a hub's API."
        return bad("hub", words, "Name the hub's API by --hub: it ends in /hub/api, after the hub's base_url.")
    remedy = (
        "Is the hub running? Name its API by --hub, for example http://hub:8081/hub/api. A network policy may block it."
    )
    return bad("hub", f"No hub answers at {url} ({answer.problem}).", remedy)


def token_known(answer: Answer, token: str) -> Finding:
    """Judge the hub's answer about the owner of the token, "" if none was given."""
    if not token:
        return unknown("token", "No token was given, so the service's scopes are not checked.", THE_SERVICES)
    if answer.ok and isinstance(answer.body, dict):
        kind, name = answer.body.get("kind", "user"), answer.body.get("name")
        return good("token", f"The hub knows the token: {kind} {name}.")
    if answer.status in FORBIDDEN:
        return bad("token", "The hub does not know this token.", THE_SERVICES)
    return unknown("token", "The hub did not say whose token this is.", "Fix the finding about the hub first.")


def scopes(answer: Answer) -> Finding:
    """Judge the scopes of the service's token."""
    body = answer.body if answer.ok and isinstance(answer.body, dict) else {}
    if (body.get("kind"), body.get("name")) != ("service", SERVICE):
        return unknown("scopes", "The service's scopes were not checked, because this is not its token.", THE_SERVICES)
    told = body.get("scopes")
    held = set(map(str, told)) if isinstance(told, list) else set()
    missing = [scope for scope in SERVICE_SCOPES if scope not in held]
    if not missing:
        return good("scopes", f"The service {body.get('name')} has the scopes that it needs.")
    remedy = (
        "configure() gives them to its role gpuspawner-service. Make configure(c, ...) the last line of the hub's "
        "configuration, so that nothing sets c.JupyterHub.load_roles after it. Then restart the hub."
    )
    return bad("scopes", f"The service lacks the scopes {', '.join(missing)}.", remedy)


def cullers(answer: Answer) -> Finding:
    """Judge the hub's other services. A culler would end GPU work."""
    if not answer.ok or not isinstance(answer.body, dict):
        return unknown("cullers", "The hub did not list its other services.", f"To see them, {AN_ADMINISTRATORS}.")
    named = [name for name, model in answer.body.items() if _culls(name, model)]
    if not named:
        return good("cullers", "No other service of the hub culls servers.")
    words = f"The hub's service {', '.join(named)} stops servers without HTTP traffic, even while their GPUs are busy."
    return bad(
        "cullers",
        words,
        f"{REMEDY} {ITS_ROLE} With Zero to JupyterHub that is cull: {{enabled: false}}.",
    )


def _culls(name: str, model: Any) -> bool:
    told = model if isinstance(model, dict) else {}
    command = told.get("command") or []
    words = [command] if isinstance(command, str) else [str(word) for word in command]
    return any(CULLER.search(word) for word in (name, *words, *(told.get("roles") or ())))


def restarts(hubs: Iterable[RunningHub], pid: int | None) -> Iterable[Finding]:
    """Yield whether a restart ends the servers of the examined hub, whose process is ``pid``.

    Other hubs of this machine are not examined. ``pid`` is None if the hub's process cannot be seen from here.
    """
    for hub in (one for one in hubs if one.pid == pid):
        if hub.ends_servers is False:
            yield good("restart", f"{hub.words} leaves its servers running when it stops.")
        else:
            by_choice = hub.ends_servers is None or hub.is_set
            yield (unknown if by_choice else bad)("restart", warning_of(hub), remedy_of(hub))


def clock(whose: str, answer: Answer) -> Finding:
    """Compare the clock of the other side with this machine's."""
    if answer.date is None:
        return unknown("clock", f"{whose} did not send its time.", f"Fix the finding about {whose.lower()} first.")
    skew = answer.date + 0.5 - answer.at  # HTTP sends whole seconds, rounded down
    if abs(skew) <= SKEW_SECONDS:
        return good("clock", f"{whose} and this machine have the same time.")
    ahead = "ahead of" if skew > 0 else "behind"
    words = f"{whose}'s clock is {abs(skew):.0f} s {ahead} this machine's: tickets and signed calls are valid for 60 s."
    return bad("clock", words, "Set both clocks by NTP. chronyc tracking or timedatectl shows which clock is wrong.")


def service_ready(url: str, answer: Answer) -> Finding:
    """Judge the service's answer to /readyz."""
    if answer.ok:
        return good("service", f"The service answers at {url} and can grant GPUs.")
    if answer.status == 503:  # noqa: PLR2004 - HTTP's own
        remedy = "Read its log, and fix the other findings here first: it may be waiting for one of them."
        return bad("service", f"The service at {url} {str(answer.body)[:200]}.", remedy)
    if answer.status:
        words = f"{url} answered {answer.status}, and is not the GPU service."
        return bad(
            "service",
            words,
            "Something else answers there. Name the service by --service, as configure(service_url=...) has it.",
        )
    remedy = (
        "Is it running? Its log says why it ended. Name its address by --service. A network policy may block its port."
    )
    return bad("service", f"No GPU service answers at {url} ({answer.problem}).", remedy)


def below_prefix(base: str, answer: Answer) -> Iterable[Finding]:
    """Yield a fault if a service that is ready answers nothing below its hub's base_url."""
    if answer.status == 404:  # noqa: PLR2004 - HTTP's own
        words = f"The service has no pages at {base}/services/gpu/, because its prefix is not the hub's."
        yield bad("prefix", words, f"Give it the hub's base_url: --base-url {base}/, or hub.baseUrl of the chart.")


def public_address(answer: Answer) -> Iterable[Finding]:
    """Yield whether the service knows the public address of its pages, to which mails, chat and `status.page` link."""
    if not answer.ok or not isinstance(answer.body, dict):
        return
    if pages := _told(answer, "pages"):
        yield good("public address", f"The service links to its pages at {pages}/.")
        return
    words = "The service does not know the hub's public address, so it writes no links to its pages."
    remedy = (
        "Set hub.publicUrl of the chart, --public-url of gpuspawner server serve, or c.JupyterHub.public_url, such as "
        "https://hub.example.org/. Requests then have status.page, and messages can be sent."
    )
    yield unknown("public address", words, remedy)


def secrets_readable(answer: Answer) -> Iterable[Finding]:
    """Check whether the service can decrypt the secrets of users. ``answer`` is the service's count of them."""
    body = answer.body if answer.ok and isinstance(answer.body, dict) else {}
    unreadable, count = body.get("unreadable"), body.get("secrets")
    if not isinstance(unreadable, int) or not isinstance(count, int):
        remedy = "Ask with an administrator's token: --token-file."
        yield unknown("secrets", "The service did not say whether it can decrypt the secrets of users.", remedy)
    elif unreadable:
        words = f"The service cannot decrypt {unreadable} of {count} secrets of users: they have another key."
        yield bad("secrets", words, "Encrypt them again: docs/how-to/administrators/change-the-secret.md.")
    elif count:
        yield good("secrets", f"The service can decrypt the secrets of users ({count}).")


def versions(own: str, hub: Answer, service: Answer, kubernetes: Answer | None) -> Iterable[Finding]:
    """Yield versions that do not fit together, or one finding that all fit."""
    found: list[Finding] = []
    told = [f"gpuspawner {own}"]
    if hub_version := _told(hub, "version"):
        told.append(f"JupyterHub {hub_version}")
        if not OLDEST_HUB <= _numbers(hub_version) < (NEWEST_HUB, 0):
            words = f"JupyterHub {hub_version} is not supported."
            found.append(bad("versions", words, f"Use 5.5 or later, below {NEWEST_HUB}."))
    if service_version := _told(service, "version"):
        told.append(f"service {service_version}")
        if service_version != own:
            words = f"The service is gpuspawner {service_version}, and this is {own}."
            found.append(
                bad("versions", words, "Install the same version for hub, service and this command, and restart.")
            )
    if kubernetes is not None and (version := _told(kubernetes, "gitVersion")):
        told.append(f"Kubernetes {version.removeprefix('v')}")
    return found or [good("versions", f"The versions fit together: {', '.join(told)}.")]


def _told(answer: Answer, name: str) -> str:
    return str(answer.body.get(name) or "") if answer.ok and isinstance(answer.body, dict) else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version)[:2])


DEFAULT_FILE = "jupyterhub_config.py"
SETTING = re.compile(r"^[^#\n]*\bcleanup_servers\b\s*=\s*(True|False)", re.MULTILINE)
CONFIGURED = re.compile(r"^\s*(\w+\.)*configure\(", re.MULTILINE)
"""configure() sets ``cleanup_servers`` to False, unless the configuration sets it."""
START_FIELD = 19
"""The field of /proc/PID/stat with the start of a process, in clock ticks since the boot. The fields are counted after
the program's name."""
CLOCK_SECONDS = 2.0
"""The precision of a start time. The kernel reports its boot time in whole seconds."""
OTHER_FILES = re.compile(r"^[^#\n]*\b(load_subconfig|exec)\(", re.MULTILINE)

BY_DEFAULT = "{hub} ends every server when it stops: c.JupyterHub.cleanup_servers is True, JupyterHub's default."
BY_SETTING = "{hub} ends every server when it stops: its configuration sets c.JupyterHub.cleanup_servers to True."
UNKNOWN = (
    "{hub} may end every server when it stops: its configuration does not show the value that "
    "c.JupyterHub.cleanup_servers had when the hub started."
)
KEEP_SERVERS = (
    "Do not restart it yet. Stop it by its API, which leaves the servers running: see Adopt a running hub, "
    "docs/how-to/administrators/adopt.md."
)
RESTART_REMEDY = f"{KEEP_SERVERS} From the next start on configure() sets cleanup_servers to False."
SETTING_REMEDY = f"To let workspaces outlive a restart, set it to False before the next start. {KEEP_SERVERS}"


@dataclass(frozen=True)
class RunningHub:
    """A hub's process. ``ends_servers`` is None if its configuration does not show the value.

    ``is_set`` is whether its configuration or its command line sets it.
    """

    pid: int
    file: Path
    ends_servers: bool | None
    is_set: bool = False

    @property
    def words(self) -> str:
        """The hub in words."""
        return f"The hub that runs here (process {self.pid}, {self.file})"


def warning_of(hub: RunningHub) -> str:
    """Return a sentence about what a restart of the hub does to its servers."""
    words = UNKNOWN if hub.ends_servers is None else BY_SETTING if hub.is_set else BY_DEFAULT
    return words.format(hub=hub.words)


def remedy_of(hub: RunningHub) -> str:
    """Return how to restart a hub without ending its servers."""
    return SETTING_REMEDY if hub.is_set else RESTART_REMEDY


def running_hubs(proc: Path = Path("/proc")) -> Iterator[RunningHub]:
    """Yield the hubs whose processes this user may see.

    Args:
        proc: the folder of the kernel's processes.
    """
    for folder in sorted(proc.glob("[0-9]*"), key=lambda one: int(one.name)):
        try:
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            if not _is_hub(arguments):
                continue
            file = (folder / "cwd").readlink() / _file_of(arguments)
            # The file of a hub in a container is below this folder.
            seen_file = folder / "root" / file.relative_to("/")
            ends_servers, is_set = _ends_servers(arguments, seen_file, _started_at(folder))
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
        yield RunningHub(int(folder.name), file, ends_servers, is_set)


def _started_at(folder: Path) -> float:
    """Return when a process started, in seconds since the epoch. The time of its folder is that of the first read."""
    ticks = int((folder / "stat").read_text().rpartition(")")[2].split()[START_FIELD])
    lines = (folder.parent / "stat").read_text().splitlines()
    booted_at = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted_at + ticks / os.sysconf("SC_CLK_TCK")


def _is_hub(arguments: Sequence[str]) -> bool:
    words = [Path(word).name for word in arguments[:3]]
    as_module = arguments[1:3] == ["-m", "jupyterhub"]
    return as_module or "jupyterhub" in words[:2]


def _file_of(arguments: Sequence[str]) -> str:
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word in {"-f", "--config"}:
            return following
        if word.startswith("--config="):
            return word.partition("=")[2]
    return DEFAULT_FILE


def _ends_servers(arguments: Sequence[str], file: Path, started_at: float) -> tuple[bool | None, bool]:
    """Return whether a hub ends its servers, and whether a setting says so.

    The first is None if that is unknown, or if the file was changed after the hub's start.
    """
    if values := SETTING.findall("\n".join(word.lstrip("-") for word in arguments)):
        return bool(values[-1] == "True"), True
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        changed = file.stat().st_mtime > started_at + CLOCK_SECONDS
    except OSError:
        return None, False
    if changed:
        return None, False
    if values := SETTING.findall(text):
        return bool(values[-1] == "True"), True
    if CONFIGURED.search(text):
        return False, False
    return None if OTHER_FILES.search(text) else True, False
