"""What of a catalog exists for the members of some groups, and which team their use is charged to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from gpuspawner.catalog.models import Catalog, Template
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.rules import Rules, Whom


def visible(catalog: Catalog, groups: Collection[str] | None) -> Catalog:
    """Return the catalog without the templates and kinds that are for groups of which somebody is in none.

    A template of whose kinds none is left is left out too. What is hidden answers as a name that does not exist.
    ``groups`` are those of the hub; None hides nothing: who may have it is checked elsewhere.
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
    """Return a template with these kinds alone. Where its default is none of them, the first of them is."""
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
    """Return the groups of the hub that are charged for their members' use: those with a team's entry or a quota."""
    of_quotas = (quota.subject for quota in rules.quotas if quota.whom in {Whom.TEAM, Whom.EACH_OF_TEAM})
    return tuple(dict.fromkeys((*rules.teams, *of_quotas)))


def teams_of(rules: Rules, groups: Collection[str] | None) -> tuple[str, ...]:
    """Return the teams among somebody's groups, in the catalog's order; all of them where ``groups`` is None."""
    return tuple(team for team in charging_teams(rules) if groups is None or team in groups)


def choose_team(rules: Rules, groups: Collection[str] | None, last_team: str, asked: Mapping[Any, Any]) -> str:
    """Return the team that a request is charged to; "" for none, which only who is in no team may have.

    1. The one that is asked for. 2. The one that was used last. 3. The only one.

    Raises:
        RequestRefused: somebody is not in the team asked for, or in several and says none.
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
