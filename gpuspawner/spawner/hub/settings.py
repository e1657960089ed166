"""The settings of ``c.GPUService``, which are also the arguments of ``configure()``, and the names that are refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from traitlets import Bool, Dict, Float, HasTraits, Instance, Integer, TraitError, TraitType, Unicode, Union
from traitlets.config import Configurable

from gpuspawner.core.text_fields import did_you_mean

PORT = 9470


def _optional(kinds: Sequence[TraitType[Any, Any]], help_text: str) -> Union:
    return Union([*kinds], default_value=None, allow_none=True, help=help_text).tag(config=True)


def _text(help_text: str) -> Union:
    return _optional([Unicode()], help_text)


def _path(help_text: str) -> Union:
    return _optional([Unicode(), Instance(PurePath)], help_text)


class GPUService(Configurable):
    """The GPU service of this hub. Set these values above the line ``configure(c)``, which reads them."""

    catalog = _optional(
        [Dict(), Unicode(), Instance(PurePath)],
        "The path of the catalog, or its content as a dict. Changes of the file take effect within seconds.",
    )
    data_dir = Union(
        [Unicode("gpuspawner-data"), Instance(PurePath)],
        help="The folder of the service's database, its secret and the ID of this hub.",
    ).tag(config=True)
    address = _text(
        "The address on which the service listens. None: 127.0.0.1, or with pods the address of the hub.",
    )
    port = Integer(PORT, min=1, max=65535, help="The port on which the service listens, 1 to 65535.").tag(config=True)
    service_url = _text(
        "The address of a service that `gpuspawner server serve` started. None: the hub starts it.",
    )
    secret_file = _path(
        "The file of the secret, 64 hexadecimal digits, if `service_url` is set and no folder is shared.",
    )
    token_file = _path(
        "The file of the hub token of the service at `service_url`. None: it is made from the secret.",
    )
    fast = _optional(
        [Float(min=1, max=3600)],
        "A number by which every time of the catalog is divided, 1 to 3600. With 30, an hour takes two minutes.",
    )
    service_settings = _optional([Dict()], "Settings of the service, by their names in the reference of configure().")
    hub_id = _text(
        "The old ID of this hub for a new `data_dir`, from the log or the page *Admin*. None: a new ID.",
    )
    store = _text(
        "The service's database, for example `postgresql://USER@HOST/DATABASE`. None: a file in `data_dir`.",
    )
    store_password_file = _path("The file of the database's password. Only the user of the hub may read it.")
    replace_home = Bool(
        default_value=True,
        help="Whether people see their workspaces after signing in. False keeps the hub's own Home.",
    ).tag(config=True)


def read_settings(c: Any, given: Mapping[str, Any]) -> GPUService:
    """Return the settings of ``c.GPUService``. ``given`` are the arguments of ``configure()``, which count first.

    Raises:
        SystemExit: A name is unknown, or a value has the wrong type. The message names the right one.
    """
    written = dict(c.GPUService)
    refuse_unknown("c.GPUService.{}", written, GPUService)
    refuse_unknown("configure({}=...)", given, GPUService)
    settings = GPUService()
    for name, value in {**written, **given}.items():
        where = f"configure({name}={value!r})" if name in given else f"c.GPUService.{name} = {value!r}"
        trait = GPUService.class_traits()[name]
        try:
            setattr(settings, name, value)
        except TraitError:
            raise SystemExit(f"gpuspawner: {where} is not {trait.info()}. {trait.help}") from None
    if not settings.catalog:
        raise SystemExit(
            'gpuspawner: configure(c) has no catalog. Write configure(c, catalog="catalog.yaml"), or set '
            "c.GPUService.catalog above it. The command `gpuspawner server init catalog.yaml` writes one."
        )
    return settings


def refuse_unknown(where: str, names: Mapping[str, Any], of: type[HasTraits]) -> None:
    """Refuse names that are no settings of a class.

    Raises:
        SystemExit: A name is unknown, with the closest known one.
    """
    known = of.class_trait_names(config=True)
    lines = [
        f"gpuspawner: {where.format(name)}: there is no such setting; {did_you_mean(name, sorted(known))}"
        for name in names
        if name not in known
    ]
    if lines:
        raise SystemExit("\n".join(lines))


def refuse_unknown_of_spawner(c: Any, spawner: type[HasTraits]) -> None:
    """Refuse unknown settings in the sections of our spawner classes, which traitlets itself would only ignore.

    Raises:
        SystemExit: A name is unknown, with the closest known one.
    """
    for owner in spawner.__mro__:
        if owner.__name__ in c and owner.__name__.startswith(("GPU", "LocalGPU")):
            refuse_unknown(f"c.{owner.__name__}.{{}}", c[owner.__name__], spawner)


def list_in_help() -> None:
    """Have ``jupyterhub --help-all`` list the settings of the service next to those of the spawners."""
    hub = sys.modules["jupyterhub.app"].JupyterHub
    listed = hub._classes_with_config_traits  # noqa: SLF001 - an entry point can only add spawners to the list

    def with_service(app: Any, classes: Any = None) -> Any:
        yield from listed(app, classes)
        yield GPUService

    hub._classes_with_config_traits = with_service  # noqa: SLF001 - as above
