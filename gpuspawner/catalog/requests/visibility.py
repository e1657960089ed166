"""The part of a catalog that a user sees: entries for their groups, the charged team, titles and prices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import date
from typing import Any

from gpuspawner.catalog.models import Catalog
from gpuspawner.catalog.template_models import Template
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.gpus.fleet import GpuKind, catalog_kind_name
from gpuspawner.core.leases.request import Request
from gpuspawner.core.rules import QuotaScope, Rules
from gpuspawner.core.text_fields import CHEAPEST, NEAREST, SOONEST
from gpuspawner.core.units import show_money

Entry = tuple[str | int, ...]

NOBODY_IN_IT = "the hub has no group {group}, so it has no members"
MAKE_IT = (
    "create it on the hub's page Admin, or correct the name; a group that the authenticator manages appears when its "
    "first member signs in"
)


def visible(catalog: Catalog, groups: Collection[str] | None) -> Catalog:
    """Return the catalog as the members of some groups of the hub see it.

    Templates and GPU kinds for other groups are left out, and so are templates whose kinds are all left out. Users get
    the same answer about them as about names that do not exist. None hides nothing: the caller has checked what the
    user may have.
    """
    if groups is None:
        return catalog
    kinds = {name: kind for name, kind in catalog.gpus.items() if _is_for(kind.groups, groups)}
    templates = {}
    for name, template in catalog.templates.items():
        seen = _with_kinds(template, kinds)
        if _is_for(template.groups, groups) and (seen.gpus or not template.gpus):
            templates[name] = seen
    if len(kinds) == len(catalog.gpus) and len(templates) == len(catalog.templates):
        return catalog
    return replace(
        catalog,
        gpus=kinds,
        templates=templates,
        simulated={name: count for name, count in catalog.simulated.items() if name in kinds},
        menus={name: menu for name, menu in catalog.menus.items() if name in templates},
    )


def _is_for(restricted: frozenset[str], groups: Collection[str]) -> bool:
    return not restricted or not restricted.isdisjoint(groups)


def _with_kinds(template: Template, kinds: Mapping[str, object]) -> Template:
    """Return a template with only these kinds. If its default kind is not among them, the first kind is the default."""
    gpus = {name: ends for name, ends in template.gpus.items() if name in kinds}
    others = {
        name: tuple(other for other in those if other in kinds)
        for name, those in template.substitutes.items()
        if name in gpus
    }
    default = template.default
    if default.gpu is not None and default.gpu not in gpus:
        gpu = next(iter(gpus), None)
        least, most = gpus[gpu] if gpu is not None else (0, 0)
        default = replace(default, gpu=gpu, count=min(max(default.count, least), most))
    return replace(template, gpus=gpus, substitutes=others, default=default)


def charging_teams(rules: Rules) -> tuple[str, ...]:
    """Return the groups that are charged for their members' usage: those with an entry in ``teams`` or a quota."""
    of_quotas = (quota.subject for quota in rules.quotas if quota.whom in {QuotaScope.TEAM, QuotaScope.EACH_OF_TEAM})
    return tuple(dict.fromkeys((*rules.teams, *of_quotas)))


def teams_of(rules: Rules, groups: Collection[str] | None) -> tuple[str, ...]:
    """Return the teams among a user's groups in the catalog's order, or all teams if ``groups`` is None."""
    return tuple(team for team in charging_teams(rules) if groups is None or team in groups)


def choose_team(rules: Rules, groups: Collection[str] | None, last_team: str, asked: Mapping[Any, Any]) -> str:
    """Return the team that a request is charged to, or "" for a user without a team.

    The team in the options goes first, then the user's last team, then the only team of the user.

    Raises:
        RequestRefused: the user is not in the team that is asked for, or is in several teams and names no team.
    """
    own, team = teams_of(rules, groups), asked.get("team")
    if team is not None and team != "":
        if isinstance(team, str) and team in own:
            return team
        remedy = "Choose one of them." if own else "Leave it out: you are in no team."
        raise RequestRefused("team", quoted(team), listed(own) or "none", remedy)
    if last_team in own:
        return last_team
    if groups is None or not own:
        return ""
    if len(own) > 1:
        raise RequestRefused("team", "none", listed(own), "Say for which of them it is.")
    return own[0]


def listed(names: Collection[str]) -> str:
    """Return names as a message lists them."""
    return ", ".join(list(names)[:20])


def named_groups(catalog: Catalog) -> dict[str, Entry]:
    """Return every group that a catalog names, with the first entry that names it."""
    rules, found = catalog.rules, dict[str, Entry]()
    for key, entries in (("gpus", catalog.gpus), ("templates", catalog.templates)):
        for name, entry in entries.items():
            for group in sorted(entry.groups):
                found.setdefault(group, (key, name, "groups"))
    for team in rules.teams:
        found.setdefault(team, ("teams", team))
    for quota in rules.quotas:
        if quota.whom in {QuotaScope.TEAM, QuotaScope.EACH_OF_TEAM}:
            found.setdefault(quota.subject, ("quotas", quota.name, "group"))
    for number, hold in enumerate(rules.holds):
        found.setdefault(hold.group, ("holds", number, "group"))
    return found


def missing_groups(catalog: Catalog, there: frozenset[str]) -> dict[str, Entry]:
    """Return the groups that a catalog names and a hub with the groups ``there`` does not have, with their entries."""
    return {group: entry for group, entry in named_groups(catalog).items() if group not in there}


def team_title(catalog: Catalog, team: str) -> str:
    """Return the title of a team, or "" for no team."""
    named = catalog.rules.teams.get(team)
    return (named.title if named else "") or team


def lost_group(catalog: Catalog, template: str, kind: str | None, team: str, groups: frozenset[str]) -> str:
    """Return the group that a request needs and its user has left, as users read it, or ""."""
    if team and team not in groups:
        return team_title(catalog, team)
    entries: Iterable[GpuKind | Template | None] = (catalog.templates.get(template), catalog.gpus.get(kind or ""))
    for entry in entries:
        if entry is not None and entry.groups and not entry.groups & groups:
            return " or ".join(sorted(entry.groups))
    return ""


def gpu_title(name: str, catalog: Catalog, *, simulated: bool = False) -> str:
    """Return the title of a GPU kind: ``simulated A100 80 GB``. It is the name if the catalog has the kind no more."""
    kind = catalog.gpus.get(name)
    return ("simulated " if simulated else "") + (kind.title if kind else name)


def gpus_asked(request: Request, catalog: Catalog, *, simulated: bool = False) -> str:
    """Return ``2 A100 80 GB``, ``2 simulated A100 80 GB`` or ``no GPU``."""
    if request.gpu is None:
        return "no GPU"
    return f"{request.count} {gpu_title(request.gpu, catalog, simulated=simulated)}"


def given_instead(catalog: Catalog, asked: str, given: str, *, simulated: bool = False) -> str:
    """Return the end of a sentence about a substitute: the requested kind, and the price if it differs."""
    price = prices(catalog, asked, given)
    cost = f": {price}" if price else ""
    return f" instead of {gpu_title(asked, catalog, simulated=simulated)}, as you allowed{cost}"


PLACE_REASONS = {
    CHEAPEST: "is the cheapest with free GPUs",
    NEAREST: "is the nearest with free GPUs",
    SOONEST: "starts it soonest",
}


def cluster_words(catalog: Catalog, request: Request, given: str) -> str:
    """Return in a sentence why a workspace is in the cluster of a kind, "" if its template does not choose that.

    A scheduler that owns the queue has reasons of its own.
    """
    names = (kind for kind in (request.gpu, *request.substitutes) if kind is not None)
    accepted = [catalog.gpus[kind] for kind in names if kind in catalog.gpus]
    where = {one.where for one in accepted if catalog_kind_name(one.name) == catalog_kind_name(given)}
    if len(where) < 2 or request.place not in PLACE_REASONS or given not in catalog.gpus or catalog.scheduler:  # noqa: PLR2004 - a choice
        return ""
    return f"Of the clusters that you accept, {catalog.gpus[given].where} {PLACE_REASONS[request.place]}."


def with_prices_of(catalog: Catalog, day: date) -> Catalog:
    """Return a catalog with the prices of a day, or the catalog itself if it has them."""
    gpus = {name: replace(kind, price_per_hour=kind.price_on(day)) for name, kind in catalog.gpus.items()}
    return catalog if gpus == catalog.gpus else replace(catalog, gpus=gpus)


def price_words(catalog: Catalog, kind: str) -> str:
    """Return the price of one GPU, ``CHF 2.10 per hour``, or "" for a kind without a price."""
    found = catalog.gpus.get(kind)
    price = None if found is None else found.price_per_hour
    return "" if price is None else f"{show_money(price, catalog.rules.currency)} per hour"


def prices(catalog: Catalog, asked: str, given: str) -> str:
    """Return the price of one kind instead of the price of another, or "" if both are equal or not known."""
    before, after = (catalog.gpus[kind].price_per_hour if kind in catalog.gpus else None for kind in (asked, given))
    if after is None or before == after:
        return ""
    if before is None:
        return price_words(catalog, given)
    return f"{show_money(after, catalog.rules.currency)} instead of {before:.2f} per hour"
