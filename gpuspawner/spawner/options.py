"""How options arrive: from the form, from a link that only fills it in, and which form is shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from traitlets import Any as AnyTrait
from traitlets import Unicode, default
from traitlets.config import LoggingConfigurable

from gpuspawner.catalog import Catalog, from_form, resolve
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.tickets import sign_ticket
from gpuspawner.spawner import form
from gpuspawner.spawner.refusals import ended


if TYPE_CHECKING:
    from jupyterhub.spawner import Spawner

    _Base = Spawner
else:
    _Base = LoggingConfigurable  # JupyterHub's Spawner refuses subclasses that do not start servers themselves


class FormOptions(_Base):
    """The part of the mixin that JupyterHub's spawn page meets."""

    gpu_catalog = AnyTrait(help="The loaded catalog. Set by configure().").tag(config=True)
    gpu_service_prefix = Unicode("/services/gpu/", help="Where browsers find the service. Set by configure().").tag(
        config=True
    )
    gpu_secret_file = Unicode(help="The file with the secret shared with the service. Set by configure().").tag(
        config=True
    )

    @property
    def catalog(self) -> Catalog:
        """The loaded catalog."""
        assert isinstance(self.gpu_catalog, Catalog)
        return self.gpu_catalog

    def gpu_secret(self) -> str:
        """Return the secret shared with the service, as written in its file."""
        return Path(self.gpu_secret_file).read_text(encoding="ascii").strip()

    @default("apply_user_options")
    def _apply_user_options_default(self) -> Any:
        # The mixin applies them; without a hook the hub warns at each start.
        return lambda _spawner, _options: None

    @default("options_form")
    def _options_form_default(self) -> Any:
        return type(self).render_form

    def options_from_form(self, formdata: Mapping[str, list[str]]) -> dict[str, Any]:
        """Return the options of a submitted form. A refused one shows the form again, with the reason."""
        try:
            options = from_form(formdata)
            resolve(self.catalog, options, self.user.name)
        except RequestRefused as error:
            raise ended(str(error), reason="refused", status=error.status) from error
        return options

    def options_from_query(self, _query: Mapping[str, list[str]]) -> dict[str, Any]:
        """Never start by a link: the hub then shows the form, which the link fills in."""
        raise ended("Filled in from your link. Press Start when it is what you want.", reason="link", status=200)

    def render_form(self) -> str:
        """Return the form, filled in from the link, else from what was last used."""
        handler = getattr(self, "handler", None)
        query = handler.request.arguments if handler is not None else {}
        return form.render(
            self.catalog,
            user=self.user.name,
            server=self.name,
            ticket=sign_ticket(bytes.fromhex(self.gpu_secret()), self.user.name, time()),
            service_prefix=self.gpu_service_prefix,
            chosen=form.prefill_from_query(query) or dict(self.user_options or {}),
        )
