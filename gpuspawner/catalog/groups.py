"""Which groups of the hub a catalog names. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gpuspawner.catalog.models import Catalog, Template
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.rules import Whom

Entry = tuple[str | int, ...]

NOBODY_IN_IT = "the hub has no group {group}: nobody is in it"
MAKE_IT = (
    "make it on the hub's page Admin, or correct the name; one that the authenticator manages comes with the first "
    "member who signs in"
)


def named_groups(catalog: Catalog) -> dict[str, Entry]:
    """Return every group that a catalog names, with the first entry that does."""
    rules, found = catalog.rules, dict[str, Entry]()
    for key, entries in (("gpus", catalog.gpus), ("templates", catalog.templates)):
        for name, entry in entries.items():
            for group in sorted(entry.groups):
                found.setdefault(group, (key, name, "groups"))
    for team in rules.teams:
        found.setdefault(team, ("teams", team))
    for quota in rules.quotas:
        if quota.whom in {Whom.TEAM, Whom.EACH_OF_TEAM}:
            found.setdefault(quota.subject, ("quotas", quota.name, "group"))
    for number, hold in enumerate(rules.holds):
        found.setdefault(hold.group, ("holds", number, "group"))
    return found


def missing_groups(catalog: Catalog, there: frozenset[str]) -> dict[str, Entry]:
    """Return the groups that a catalog names and a hub with the groups ``there`` does not have, as named_groups."""
    return {group: entry for group, entry in named_groups(catalog).items() if group not in there}


def team_title(catalog: Catalog, team: str) -> str:
    """Return a team as people read it; "" for none."""
    named = catalog.rules.teams.get(team)
    return (named.title if named else "") or team


def lost_group(catalog: Catalog, template: str, kind: str | None, team: str, groups: frozenset[str]) -> str:
    """Return the group that a request needs and its user is in no more, as people read it; "" where there is none."""
    if team and team not in groups:
        return team_title(catalog, team)
    entries: Iterable[GpuKind | Template | None] = (catalog.templates.get(template), catalog.gpus.get(kind or ""))
    for entry in entries:
        if entry is not None and entry.groups and not entry.groups & groups:
            return " or ".join(sorted(entry.groups))
    return ""
