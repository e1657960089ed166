"""The recipients of messages about teams: leads, the chat of a team, and administrators. Each has an inbox, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuspawner.service.notifications.sender import Message
from gpuspawner.service.store.outbox import OutboxRow
from gpuspawner.service.store.usage_sums import STATEMENT, TeamAlert
from gpuspawner.service.web.permissions import Person, Role

if TYPE_CHECKING:
    from gpuspawner.service.parts import Parts  # which keeps the inboxes


def leads_of(state: Parts, team: str) -> list[str]:
    """Return the leads of a team: those in the catalog, and those who used their right."""
    rules = state.catalog.rules
    used = {one.name for one in state.roles_used.values() if Role.LEAD in one.roles and team in one.teams_led(rules)}
    return sorted(used | _leads_in_catalog(state, team))


def _leads_in_catalog(state: Parts, team: str) -> frozenset[str]:
    teams = state.catalog.rules.teams
    return teams[team].leads if team in teams else frozenset()


def recipients_of(state: Parts, team: str) -> list[str]:
    """Return the recipients of messages about a team in words: its leads, and its chat if it has one."""
    chat = [f"the chat of team {team}"] if team in state.settings.notify_teams else []
    return leads_of(state, team) + chat


def rows_about_team(
    state: Parts, team: str, kind: str, title: str, text: str, *, sender: str = "", to_admins: bool = True
) -> list[OutboxRow]:
    """Return a message by mail and chat to the leads of a team, to the team's chat and to administrators.

    Args:
        state: the parts of the service.
        team: the team, "" if only administrators are told.
        kind: the kind of the message.
        title: its first line.
        text: its text.
        sender: the user who caused it. A lead gets no message about their own request.
        to_admins: whether administrators get it.
    """
    leads = [name for name in leads_of(state, team) if name != sender] if team else []
    messages = [Message("", name, kind, title, text) for name in leads]
    if team:
        messages.append(Message("", sender, kind, title, text, to_team=team))
    if to_admins:
        messages.append(Message("", sender, kind, title, text, to_admins=True))
    return [row for message in messages for row in state.notifier.rows_of(message)]


def alerts_for(state: Parts, person: Person, since: float) -> list[TeamAlert]:
    """Return the alerts in the inbox of a person: those of the teams that they lead, and for administrators all.

    Statements are for leads alone. ``since`` is the time of the oldest alert, in seconds since the epoch.
    """
    return [one for one in state.team_alerts.since(since) if one.title and _is_for(state, person, one)]


def _is_for(state: Parts, person: Person, alert: TeamAlert) -> bool:
    if alert.kind != STATEMENT and Role.ADMINISTRATOR in person.roles:
        return True
    leads = person.name in _leads_in_catalog(state, alert.team)
    return bool(alert.team) and (leads or alert.team in person.teams_led(state.catalog.rules))
