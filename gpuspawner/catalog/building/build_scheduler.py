"""Who owns the queue, where that is not gpuspawner: one scheduler, and the queue of whom."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import MappingProxyType
from typing import Any

from gpuspawner.catalog.building.extends import Named
from gpuspawner.catalog.document import Issue, Loc
from gpuspawner.catalog.names import did_you_mean
from gpuspawner.catalog.rules.schedulers import HttpSchedulerEntry, KueueEntry, PodQueuesEntry, SchedulerEntry
from gpuspawner.catalog.values import HttpSchedulerAddress, KueueQueues, PodQueues

Owner = HttpSchedulerAddress | KueueQueues | PodQueues
OF_ALL: Loc = ("scheduler",)


def build_scheduler(
    entry: SchedulerEntry, named: Named, known_teams: Collection[str], issues: list[Issue], loc: Loc = OF_ALL
) -> Owner | None:
    """Return who owns the queue, None where that is gpuspawner, adding an issue for each thing wrong at ``loc``."""
    written = [name for name in SchedulerEntry.model_fields if name in entry.model_fields_set]
    if len(written) > 1:
        right = f"keep one of {', '.join(written[:-1])} and {written[-1]}"
        issues.append(Issue(loc, "two schedulers can't own one queue", right))
    if "kueue" in written:
        return _kueue(entry.kueue, loc, named, known_teams, issues)
    for system, queues in (("volcano", entry.volcano), ("kai", entry.kai)):
        if system in written:
            return _pod_queues(system, queues, loc, named, known_teams, issues)
    return _http(entry.http, named, issues, is_written=bool(written))


def _http(
    http: HttpSchedulerEntry, named: Named, issues: list[Issue], *, is_written: bool
) -> HttpSchedulerAddress | None:
    if http.url is None:
        if is_written and not named.is_wrong("scheduler"):
            right = "add url: with its address, for example scheduler: {http: {url: http://batch:8080}}"
            issues.append(Issue(("scheduler", "http"), "where the scheduler is is not said", right))
        return None
    if http.callback is not None and http.token_file is None and not named.is_wrong("scheduler"):
        right = "add token_file: what the scheduler sends is signed with its token"
        issues.append(Issue(("scheduler", "http", "callback"), "without a token a callback could be anybody's", right))
    more = _written(timeout_seconds=http.timeout, token_file=http.token_file, callback=http.callback)
    return HttpSchedulerAddress(http.url, **more)


def _kueue(
    entry: KueueEntry, loc: Loc, named: Named, known_teams: Collection[str], issues: list[Issue]
) -> KueueQueues | None:
    issues.extend(_unknown((*loc, "kueue", "teams"), entry.teams, named, known_teams))
    if entry.queue is None:
        if not named.is_wrong(*loc):
            right = "add queue: with the name of a LocalQueue, for example scheduler: {kueue: {queue: workspaces}}"
            issues.append(Issue((*loc, "kueue"), "the queue of all is not said", right))
        return None
    more = _written(namespace=entry.namespace, priority_class=entry.priority_class)
    return KueueQueues(entry.queue, MappingProxyType(dict(entry.teams)), MappingProxyType(dict(entry.users)), **more)


def _pod_queues(
    system: str, entry: PodQueuesEntry, loc: Loc, named: Named, known_teams: Collection[str], issues: list[Issue]
) -> PodQueues:
    issues.extend(_unknown((*loc, system, "teams"), entry.teams, named, known_teams))
    issues.extend(_unknown((*loc, system, "priority_classes"), entry.priority_classes, named, known_teams))
    return PodQueues(
        system,
        teams=MappingProxyType(dict(entry.teams)),
        users=MappingProxyType(dict(entry.users)),
        priority_classes=MappingProxyType(dict(entry.priority_classes)),
        **_written(queue=entry.queue, priority_class=entry.priority_class, wait_seconds=entry.wait),
    )


def _unknown(loc: Loc, teams: Iterable[str], named: Named, known_teams: Collection[str]) -> Iterable[Issue]:
    """Yield an issue for each name that is no team's."""
    if named.is_wrong("teams") or named.is_wrong("quotas"):
        return
    for team in teams:
        if team not in known_teams:
            yield Issue((*loc, team), f"no team is called `{team}`", did_you_mean(team, known_teams))


def _written(**values: Any) -> dict[str, Any]:
    """Return what was written: for the rest the record's own defaults hold."""
    return {name: value for name, value in values.items() if value is not None}
