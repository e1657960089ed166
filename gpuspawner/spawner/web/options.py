"""The options of a start: from the form, or from a link that only fills in the form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from jupyterhub.user import User
from jupyterhub.utils import isoformat
from traitlets import Callable, HasTraits, Unicode, default, observe

from gpuspawner.catalog import LINKED, Catalog, Resolution, from_form, resolve_all, teams_of, visible, without_defaults
from gpuspawner.catalog.visibility import named_groups, team_title
from gpuspawner.core.authentication import sign_ticket
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases.request import Request
from gpuspawner.spawner.client import LeaseClient
from gpuspawner.spawner.progress import ended_start
from gpuspawner.spawner.web import form
from gpuspawner.spawner.web.pages import ServiceView

if TYPE_CHECKING:
    from jupyterhub.spawner import Spawner as _Base
else:
    # JupyterHub's Spawner refuses subclasses that do not start servers themselves. And `jupyterhub --help-all` lists
    # each part of a spawner that is a Configurable, with all its settings again: only the mixin as a whole is one.
    _Base = HasTraits


class FormOptions(_Base):
    """The part of the mixin for JupyterHub's spawn page."""

    gpu_read_catalog = Callable(help="Gives the loaded catalog. Set by configure().").tag(config=True)
    gpu_take_added = Callable(
        None, allow_none=True, help="Takes in what custom resources add to it. Set by configure()."
    ).tag(config=True)
    gpu_service_prefix = Unicode("/services/gpu/", help="Where browsers find the service. Set by configure().").tag(
        config=True
    )
    gpu_secret_file = Unicode(help="The file with the secret shared with the service. Set by configure().").tag(
        config=True
    )

    gpu_data_dir = Unicode(help="The hub's own folder. Set by configure().").tag(config=True)

    @property
    def gpu_folder(self) -> Path:
        """The folder for files that are not secret: the output of servers, and undelivered reports."""
        return Path(self.gpu_data_dir) if self.gpu_data_dir else Path(self.gpu_secret_file).parent

    @property
    def gpu_catalog(self) -> Catalog:
        """The loaded catalog."""
        catalog: Catalog = self.gpu_read_catalog()
        return catalog

    async def gpu_follow_catalog(self) -> None:
        """Update the catalog from custom resources. While the service is away, earlier additions stay."""
        if self.gpu_take_added is not None:
            await self.gpu_take_added(LeaseClient(self.gpu_service_url, bytes.fromhex(self.gpu_secret())))

    def gpu_groups(self) -> frozenset[str]:
        """Return the hub's groups that the user is in now, where the catalog names any."""
        if not named_groups(self.gpu_catalog):
            return frozenset()
        return frozenset(group.name for group in self.user.orm_user.groups)

    def gpu_request(self, options: object) -> Request:
        """Resolve the options of the user. Only the service knows which of several teams was charged last.

        Raises:
            AllRefused: as :func:`gpuspawner.catalog.resolve`.
        """
        return self._gpu_resolution(options).must()

    def _gpu_resolution(self, options: object) -> Resolution:
        return resolve_all(self.gpu_catalog, options, self.user.name, **self._gpu_asker())

    def _gpu_asker(self) -> dict[str, Any]:
        groups = self.gpu_groups()
        return {"groups": groups, "last_team": next(iter(teams_of(self.gpu_catalog.rules, groups)), "")}

    def gpu_secret(self) -> str:
        """Return the secret shared with the service, as written in its file."""
        return Path(self.gpu_secret_file).read_text(encoding="ascii").strip()

    def gpu_actor(self) -> str:
        """Return the name of another person who starts the server for its user; "" without one."""
        actor = getattr(self.handler, "current_user", None)
        return actor.name if isinstance(actor, User) and actor.name != self.user.name else ""

    _gpu_link: Mapping[str, str] | None = None

    @observe("handler")
    def _gpu_take_link(self, change: Mapping[str, Any]) -> None:
        """Take a link's options for the form. The hub would start by them at once: it finds none in the request."""
        request = getattr(change["new"], "request", None)
        if request is not None and request.method == "GET":
            self._gpu_link = form.prefill_from_query(request.query_arguments)
            request.query_arguments = {}

    @default("apply_user_options")
    def _gpu_apply_user_options_default(self) -> Any:
        # The mixin applies them; without a hook the hub warns at each start.
        return lambda _spawner, _options: None

    @default("options_form")
    def _gpu_options_form_default(self) -> Any:
        return type(self).gpu_render_form

    def options_from_form(self, formdata: Mapping[str, list[str]]) -> dict[str, Any]:
        """Return the options of a submitted form. A refused one shows the form again, with the reason."""
        asker = self._gpu_asker()
        catalog = visible(self.gpu_catalog, asker["groups"])
        # JupyterHub 6.1 shows a named server's form again by asking the default one: the user is what both have.
        self.user.gpu_posted = form.prefill_from_post(catalog, formdata)
        try:
            return without_defaults(self.gpu_catalog, from_form(catalog, formdata), self.user.name, **asker)
        except RequestRefused as error:
            raise ended_start(str(error), reason="refused", status=error.status) from error

    def options_from_query(self, _query: Mapping[str, list[str]]) -> dict[str, Any]:
        """Refuse, whatever the hub found: a GET never starts anything."""
        raise ended_start("A link only fills in the form. Press Start there.", reason="refused", status=400)

    async def gpu_render_form(self) -> str:
        """Return the form as a hub page shows it, with the service's numbers of this moment."""
        await self.gpu_follow_catalog()
        catalog, groups = self.gpu_catalog, self.gpu_groups()
        offered = visible(catalog, groups)
        posted = bool(self.user.__dict__.get("gpu_posted"))
        chosen, notes = self._gpu_filled_in(offered)
        # People who may start this server see its form. The form must not let them act as its user.
        secret = bytes.fromhex(self.gpu_secret())
        created, looks = isoformat(self.user.orm_user.created), getattr(self.handler, "current_user", None)
        ticket = sign_ticket(secret, self.user.name, created, time(), form=True)
        is_own = isinstance(looks, User) and looks.name == self.user.name
        return form.render(
            offered,
            user=self.user.name,
            server=self.name,
            ticket=ticket,
            service_prefix=self.gpu_service_prefix,
            chosen=chosen,
            notes=notes,
            live=await ServiceView(self.gpu_service_url, ticket, secret).live(chosen, self.name),
            own=not self.gpu_actor(),
            own_ticket=sign_ticket(secret, self.user.name, created, time()) if is_own else "",
            teams=tuple((team, team_title(catalog, team)) for team in teams_of(catalog.rules, groups)),
            posted=posted,
            names=bool(self.user.allow_named_servers),
            hub_prefix=self.hub.base_url,
        )

    def _gpu_filled_in(self, offered: Catalog) -> tuple[Mapping[str, Any], list[str]]:
        """Return the choices of the form: those of a refused form, else of the link, else of the last start.

        Also return a sentence for each choice of the link that is not offered.
        """
        posted = self.user.__dict__.pop("gpu_posted", None)
        link, self._gpu_link = self._gpu_link, None
        if link:
            return form.offered(offered, link)
        posted = posted if link is None else None
        if posted:
            return posted, []
        last = self._gpu_resolution(self.user_options).accepted  # the form must not offer what Start refuses
        # Which team was charged and what else was consented to, for whichever server, the service knows.
        return {key: value for key, value in last.items() if key in LINKED}, []
