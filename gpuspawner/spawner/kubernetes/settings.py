"""Settings of KubeSpawner as the configuration has them: the value, and where it is written."""

from __future__ import annotations

from typing import Any

from traitlets import HasTraits, TraitError
from traitlets.config.loader import LazyConfigValue

from gpuspawner.spawner.kubernetes.configuration import value_of


def written(c: Any, spawner: type, setting: str, default: Any) -> tuple[str, Any]:
    """Return where a setting of the spawner's class is written, and its value, by the nearest class that has one.

    Raises:
        SystemExit: it is not of the setting's type: the hub itself would find out at the first start.
    """
    for owner in spawner.__mro__:
        value = c[owner.__name__].get(setting) if owner.__name__ in c else None
        if isinstance(value, LazyConfigValue):
            value = value.get_value(default)
        if value is not None:
            return taken(f"c.{owner.__name__}.{setting}{value_of(setting)}", spawner, setting, value)
    return f"c.KubeSpawner.{setting}", default


def taken(where: str, spawner: type, setting: str, value: Any) -> tuple[str, Any]:
    """Return where a setting is written and its value. Raises SystemExit where it is not of the setting's type."""
    trait = spawner.class_traits().get(setting) if issubclass(spawner, HasTraits) else None
    if trait is None or setting == "profile_list":  # which is looked at entry by entry
        return where, value
    try:
        trait._validate(HasTraits(), value)  # noqa: SLF001 - as any class that has the trait does
    except TraitError:
        raise SystemExit(f"gpuspawner: {where} takes {trait.info()}, not {type(value).__name__}.") from None
    return where, value


def all_namespaces(c: Any, spawner: type) -> bool:
    """Whether workspaces are in namespaces of their users."""
    return bool(written(c, spawner, "enable_user_namespaces", default=False)[1])
