"""The options of a start: from the form, or from a link that only fills in the form."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import TYPE_CHECKING, Any

from jupyterhub.user import User
from jupyterhub.utils import isoformat

from gpuspawner.catalog import LINKED, Catalog, from_form, teams_of, visible, without_defaults
from gpuspawner.catalog.requests.visibility import team_title
from gpuspawner.core.authentication import sign_ticket
from gpuspawner.core.errors import RequestRefused
from gpuspawner.spawner.progress import ended_start
from gpuspawner.spawner.web import form
from gpuspawner.spawner.web.pages import ServiceView

if TYPE_CHECKING:
    from gpuspawner.spawner.mixin import GPUSpawnerMixin


class SpawnForm:
    """The form of a spawner on JupyterHub's spawn page."""

    def __init__(self, spawner: GPUSpawnerMixin) -> None:
        """Show and read the form of this spawner."""
        self._spawner = spawner
        self._link: Mapping[str, str] | None = None

    def take_link(self, request: Any) -> None:
        """Take a link's options for the form. The hub would start by them at once: it finds none in the request."""
        if request is not None and request.method == "GET":
            self._link = form.prefill_from_query(request.query_arguments)
            request.query_arguments = {}

    def read(self, formdata: Mapping[str, list[str]]) -> dict[str, Any]:
        """Return the options of a submitted form. A refused one shows the form again, with the reason."""
        spawner = self._spawner
        asker = spawner._gpu_asker()
        catalog = visible(spawner.gpu_catalog, asker["groups"])
        # JupyterHub 6.1 shows a named server's form again by asking the default one: the user is what both have.
        spawner.user.gpu_posted = form.prefill_from_post(catalog, formdata)
        try:
            return without_defaults(spawner.gpu_catalog, from_form(catalog, formdata), spawner.user.name, **asker)
        except RequestRefused as error:
            raise ended_start(str(error), reason="refused", status=error.status) from error

    async def render(self) -> str:
        """Return the form as a hub page shows it, with the service's numbers of this moment."""
        spawner = self._spawner
        await spawner.gpu_follow_catalog()
        catalog, groups = spawner.gpu_catalog, spawner.gpu_groups()
        offered = visible(catalog, groups)
        posted = bool(spawner.user.__dict__.get("gpu_posted"))
        chosen, notes = self._filled_in(offered)
        # People who may start this server see its form. The form must not let them act as its user.
        secret = bytes.fromhex(spawner.gpu_secret())
        created, looks = isoformat(spawner.user.orm_user.created), getattr(spawner.handler, "current_user", None)
        ticket = sign_ticket(secret, spawner.user.name, created, time(), form=True)
        is_own = isinstance(looks, User) and looks.name == spawner.user.name
        return form.render(
            offered,
            user=spawner.user.name,
            server=spawner.name,
            ticket=ticket,
            service_prefix=spawner.gpu_service_prefix,
            chosen=chosen,
            notes=notes,
            live=await ServiceView(spawner.gpu_service_url, ticket, secret).live(chosen, spawner.name),
            own=not spawner.gpu_actor(),
            own_ticket=sign_ticket(secret, spawner.user.name, created, time()) if is_own else "",
            teams=tuple((team, team_title(catalog, team)) for team in teams_of(catalog.rules, groups)),
            posted=posted,
            names=bool(spawner.user.allow_named_servers),
            hub_prefix=spawner.hub.base_url,
        )

    def _filled_in(self, offered: Catalog) -> tuple[Mapping[str, Any], list[str]]:
        """Return the choices of the form: those of a refused form, else of the link, else of the last start.

        Also return a sentence for each choice of the link that is not offered.
        """
        posted = self._spawner.user.__dict__.pop("gpu_posted", None)
        link, self._link = self._link, None
        if link:
            return form.offered(offered, link)
        if posted and link is None:
            return posted, []
        last = self._spawner._gpu_resolution(self._spawner.user_options).accepted  # not what Start refuses
        # Only the service knows which team was charged and what else the user consented to.
        return {key: value for key, value in last.items() if key in LINKED}, []
