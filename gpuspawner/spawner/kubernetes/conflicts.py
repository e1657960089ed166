"""``configure()`` with workspaces as pods: settings and profiles that contradict a lease or weaken it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuspawner.catalog import OPTIONS, RESERVED, Catalog
from gpuspawner.catalog.requests.profile_options import PROFILE, Menu, MenuOption, Unlisted
from gpuspawner.spawner.kubernetes.configuration import (
    all_namespaces,
    check_setting,
    find_unchecked_texts,
    read_setting,
)
from gpuspawner.spawner.kubernetes.gpu_faults import (
    VISIBLE,
    containers,
    faults_of_amounts,
    faults_of_annotations,
    faults_of_container,
    faults_of_mounts,
    faults_of_pod,
    faults_of_resources,
    faults_of_server,
    faults_of_variables,
    faults_of_volumes,
    hidden_variables,
    is_privileged,
    named_entries,
    part,
)

Read = Callable[[str, Any], tuple[str, Any]]
"""Returns the place and the value of a setting of KubeSpawner, or the given default."""


def find_conflicts(c: Any, spawner: type, catalog: Catalog) -> Iterator[str]:
    """Yield a sentence for each setting of the hub that contradicts a lease, with the remedy."""
    named = frozenset(kind.resource for kind in catalog.gpus.values() if kind.resource)
    yield from _find_setting_conflicts(partial(read_setting, c, spawner), named)
    for setting in ("options_form", "options_from_form"):
        where, form = read_setting(c, spawner, setting, None)
        if form is not None:
            yield f"{where} would replace gpuspawner's form. Remove it. {TEMPLATES}."
    yield from _pod_names(c, spawner)
    yield from find_profile_conflicts(c, spawner, catalog)
    for override in read_overrides(c, spawner, catalog):
        if not isinstance(override.settings, Mapping):
            given = type(override.settings).__name__
            yield f"{override.where}: kubespawner_override takes a dict, not {given}."
            continue
        yield from _find_setting_conflicts(partial(_read_override, override, spawner), named)
        if "namespace" in override.settings and not all_namespaces(c, spawner):
            yield f"{override.where}: namespace: the service would not see its workspaces there. Remove this line."


def find_weaknesses(c: Any, spawner: type, catalog: Catalog) -> Iterator[str]:
    """Yield a sentence for each setting that a lease replaces, or that weakens a lease."""
    for setting in ("cpu_guarantee", "mem_guarantee"):
        where, amount = read_setting(c, spawner, setting, None)
        if amount:
            yield (
                f"{where} is not used: a workspace gets what its user requests within the bounds of its template. "
                "Write guarantee in the template to guarantee only a part of that."
            )
    if callable(read_setting(c, spawner, "profile_list", [])[1]):
        yield (
            "c.KubeSpawner.profile_list is a function: what it returns is judged at each start alone, and the form "
            "does not offer its profile_options. Write a list or a dict for that."
        )
    yield from find_unchecked_texts()
    reads = [partial(read_setting, c, spawner)]
    reads += [partial(_read_override, one, spawner) for one in read_overrides(c, spawner, catalog)]
    for read in reads:
        yield from _find_weakening_settings(read)


def _pod_names(c: Any, spawner: type) -> Iterator[str]:
    """Yield settings that give several servers the same pod: each would end the pod of the others."""
    where, template = read_setting(c, spawner, "pod_name_template", "{user_server}")
    fields = " ".join(re.findall(r"\{(\w+)", template))
    if "user" not in fields:
        yield f"{where} gives all users the same pod: one would end another's. Write {{user_server}} in it."
    elif "server" not in fields and c.JupyterHub.get("allow_named_servers", False):
        yield f"{where} gives all servers of a user the same pod: one would end another. Write {{user_server}} in it."


def _find_setting_conflicts(read: Read, named: frozenset[str]) -> Iterator[str]:
    """Yield settings of KubeSpawner that contradict a lease, from the hub's configuration or a profile."""
    for setting in ("extra_resource_limits", "extra_resource_guarantees"):
        yield from faults_of_amounts(*read(setting, {}), named)
    for setting, bound in (("cpu_limit", "cpu"), ("mem_limit", "memory")):
        where, limit = read(setting, None)
        if limit is not None:
            yield f"{where} would be replaced by what people ask. Take it out; write bounds: {{{bound}: ...}} instead."
    for where, privileged in _privileged(read):
        if privileged:
            yield f"{where}: a privileged container sees every GPU of its node. Take it out."
    where, environment = read("environment", {})
    yield from faults_of_variables(where, [part(value, "name") or key for key, value in environment.items()])
    where, extra = read("extra_container_config", {})
    yield from faults_of_resources(where, extra, named)
    yield from faults_of_server(where, extra)
    for setting in ("extra_containers", "init_containers"):
        where, others = read(setting, [])
        for name, container in named_entries(others):
            yield from faults_of_resources(f"{where}, {name}", container, named)
            yield from faults_of_container(f"{where}, {name}", container)
    yield from faults_of_volumes(*read("volumes", []))
    yield from faults_of_mounts(*read("volume_mounts", []))
    yield from faults_of_annotations(*read("extra_annotations", {}))
    where, spec = read("extra_pod_config", {})
    yield from faults_of_pod(where, spec)
    for place, container in containers(where, spec):
        yield from faults_of_resources(place, container, named)
    if part(spec, "containers"):
        yield f"{where}: containers replaces the server's own container. Write them in c.KubeSpawner.extra_containers."


def _privileged(read: Read) -> Iterator[tuple[str, Any]]:
    yield read("privileged", None)
    where, context = read("container_security_context", {})
    if not callable(context):  # a function's result is checked in the finished pod
        yield f"{where}: privileged", context.get("privileged")
    where, extra = read("extra_container_config", {})
    yield f"{where}: securityContext: privileged", is_privileged(extra)


def _find_weakening_settings(read: Read) -> Iterator[str]:
    """Yield settings that could give a workspace a GPU."""
    where, extra = read("extra_container_config", {})
    if hidden_variables(extra):
        yield (
            f"{where}: envFrom takes variables that are not seen here: {VISIBLE} among them would show a workspace "
            "every GPU of its node. Give it a prefix, or write the variables in c.KubeSpawner.environment."
        )
    where, others = read("extra_containers", [])
    for name, container in named_entries(others):
        if is_privileged(container):
            yield (
                f"{where}, {name}: a privileged container next to the server sees every GPU of its node, and no lease "
                "counts what it uses. Do not let users run programs in it."
            )


def _read_override(override: Override, spawner: type, setting: str, default: Any) -> tuple[str, Any]:
    where = f"{override.where}: {setting}"
    value = override.settings.get(setting) if isinstance(override.settings, Mapping) else None
    if not value or callable(value):  # a function's result is checked in the finished pod
        return where, default
    return check_setting(where, spawner, setting, value)


TEMPLATES = "Users' choices are configured in the catalog's templates"
OURS = frozenset({*OPTIONS, *RESERVED, PROFILE})


@dataclass(frozen=True)
class Override:
    """A ``kubespawner_override`` for some workspaces, and its place."""

    where: str
    settings: Any


def find_profile_conflicts(c: Any, spawner: type, catalog: Catalog) -> Iterator[str]:
    """Yield a sentence for each contradiction of profiles to templates and to users' choices."""
    where, profiles = read_setting(c, spawner, "profile_list", [])
    if callable(profiles):
        return
    for number, profile in enumerate(_sorted_profiles(profiles), 1):
        if not isinstance(profile, Mapping) or not isinstance(profile.get("display_name"), str):
            yield f"{where}: profile {number} has no display_name, which KubeSpawner needs. Write one."
            return
    by_slug = _by_slug(profiles)
    wanted = {name: template.profile for name, template in catalog.templates.items() if template.profile}
    for name, slug in wanted.items():
        if slug not in by_slug:
            known = ", ".join(by_slug) or "none"
            yield f"templates.{name}.profile: {where} has no profile with the slug {slug}. It has: {known}."
    if len(by_slug) > 1 and not wanted:
        yield (
            f"{where} has {len(by_slug)} profiles, of which people would only get the default one: {TEMPLATES}. "
            f"Write profile: {next(iter(by_slug))} and so on in the templates, or keep one profile."
        )
    for slug, profile in _used_profiles(c, spawner, catalog).items():
        yield from _option_conflicts(f"{where}, {slug}", profile)
    for name in wanted:
        slug, profile = _profiles_by_template(c, spawner, catalog).get(name, ("", {}))
        chosen = [option for option in _mapping(profile.get("profile_options")) if _chooses_image(profile, option)]
        if chosen and catalog.templates[name].image:
            yield (
                f"templates.{name}.image replaces the image that people choose by {where}, {slug}, {chosen[0]}. "
                "Take one of them out."
            )


def read_overrides(c: Any, spawner: type, catalog: Catalog) -> Iterator[Override]:
    """Yield the overrides of profiles and their options. A function is checked by its result."""
    where = read_setting(c, spawner, "profile_list", [])[0]
    for slug, profile in _used_profiles(c, spawner, catalog).items():
        yield Override(f"{where}, {slug}", profile.get("kubespawner_override") or {})
        yield from _option_overrides(f"{where}, {slug}", profile)


def read_menus(c: Any, spawner: type, catalog: Catalog) -> dict[str, Menu]:
    """Return the choices of each template's profile, by template. There are no conflicts: they were refused.

    A template with its own image has no choice of images from KubeSpawner's default profile.
    """
    if callable(read_setting(c, spawner, "profile_list", [])[1]):
        return {name: Menu(template.profile) for name, template in catalog.templates.items() if template.profile}
    found = {}
    for name, (slug, profile) in _profiles_by_template(c, spawner, catalog).items():
        fixed = bool(catalog.templates[name].image)
        options = (profile.get("profile_options") or {}).items()
        named_entries = (_menu_option(*one) for one in options if not (fixed and _chooses_image(profile, one[0])))
        found[name] = Menu(slug, tuple(named_entries))
    return found


def _chooses_image(profile: Mapping[str, Any], option: str) -> bool:
    one = {"profile_options": {option: _mapping(profile.get("profile_options"))[option]}}
    return any("image" in _mapping(override.settings) for override in _option_overrides("", one))


def _sorted_profiles(profiles: Any) -> Sequence[Any]:
    # KubeSpawner uses the values of a mapping in the order of its keys.
    return [profiles[key] for key in sorted(profiles)] if isinstance(profiles, Mapping) else profiles


def _by_slug(profiles: Any) -> dict[str, Mapping[str, Any]]:
    """Return the profiles by KubeSpawner's names, except functions and invalid values."""
    from slugify import slugify  # noqa: PLC0415 - KubeSpawner's own, an extra of the package

    named_entries = [] if callable(profiles) else _sorted_profiles(profiles)
    if not all(isinstance(one, Mapping) and isinstance(one.get("display_name"), str) for one in named_entries):
        return {}
    return {profile.get("slug") or slugify(profile["display_name"]): profile for profile in named_entries}


def _profiles_by_template(c: Any, spawner: type, catalog: Catalog) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the profile of each template: its named profile, or else KubeSpawner's default."""
    by_slug = _by_slug(read_setting(c, spawner, "profile_list", [])[1])
    marked = [slug for slug, profile in by_slug.items() if profile.get("default")]
    usual = next(iter([*marked, *by_slug]), "")
    slugs = {name: template.profile or usual for name, template in catalog.templates.items()}
    return {name: (slug, by_slug[slug]) for name, slug in slugs.items() if slug in by_slug}


def _used_profiles(c: Any, spawner: type, catalog: Catalog) -> dict[str, Mapping[str, Any]]:
    return dict(_profiles_by_template(c, spawner, catalog).values())


def _option_overrides(where: str, profile: Mapping[str, Any]) -> Iterator[Override]:
    """Yield the overrides of a profile's options, except of options that KubeSpawner would not accept."""
    for name, option in _mapping(profile.get("profile_options")).items():
        choices = _mapping(_mapping(option).get("choices"))
        for key, choice in (*choices.items(), ("unlisted_choice", _mapping(option).get("unlisted_choice"))):
            yield Override(f"{where}, {name}, {key}", _mapping(choice).get("kubespawner_override") or {})


def _option_conflicts(where: str, profile: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of a profile's options. KubeSpawner itself would report them only at a start."""
    options = profile.get("profile_options") or {}
    if not isinstance(options, Mapping):
        yield f"{where}: profile_options takes a dict, not {type(options).__name__}."
        return
    for name, option in options.items():
        place = f"{where}, {name}"
        if name in OURS:
            yield f"{place}: an option of every template has this name already. Give it another name."
        if not isinstance(option, Mapping) or not isinstance(option.get("choices") or {}, Mapping):
            yield f"{place}: an option is a dict with display_name and a dict of choices. Write it so."
            continue
        choices, unlisted = _mapping(option.get("choices")), _mapping(option.get("unlisted_choice"))
        for key, choice in choices.items():
            if not isinstance(key, str) or not isinstance(choice, Mapping):
                yield f"{place}, {key}: a choice is a dict under a text, with display_name. Write it so."
        if not choices and not unlisted.get("enabled"):
            yield f"{place}: there is nothing to choose. Write choices, or unlisted_choice with enabled: True."
        try:
            re.compile(str(unlisted.get("validation_regex") or ""))
        except re.error as error:
            yield f"{place}: unlisted_choice: validation_regex is no regular expression ({error}). Mend it."


def _menu_option(name: str, option: Mapping[str, Any]) -> MenuOption:
    choices = {key: str(choice.get("display_name") or key) for key, choice in _mapping(option.get("choices")).items()}
    marked = [key for key, choice in _mapping(option.get("choices")).items() if choice.get("default")]
    unlisted = _mapping(option.get("unlisted_choice"))
    return MenuOption(
        name=name,
        title=str(option.get("display_name") or name),
        choices=choices,
        default=next(iter([*marked, *choices]), ""),
        unlisted=Unlisted(
            str(unlisted.get("display_name") or "Other"),
            str(unlisted.get("validation_regex") or ""),
            str(unlisted.get("validation_message") or ""),
        )
        if unlisted.get("enabled")
        else None,
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
