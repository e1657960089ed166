"""`configure()` and the service's settings, from their docstrings."""

from __future__ import annotations

from dataclasses import fields

from gpuspawner.service.settings import Settings
from gpuspawner.spawner import configure
from gpuspawner.spawner.hub.settings import GPUService
from tools.docs.reference.written import attribute_docstrings, docstring, table

HEAD = """\
# configure()

The last lines of `jupyterhub_config.py`:

```python
from gpuspawner.spawner import configure

configure(c, catalog="catalog.yaml")
```

"""
ALSO = """\
Each setting is an argument, or a line such as `c.GPUService.port = 9471` above `configure(c)`. Arguments count first.
`jupyterhub --help-all` lists them too. A wrong name is refused with the right one. `c.GPUSpawner` has the settings of
each spawner class, also of one that is no KubeSpawner.

"""
SETTINGS = """
## Settings of the service

These are the keys of `service_settings`. A service of its own reads them from the file that `--settings` names. The
chart has them below `settings`. Times are seconds.

"""


def configuration() -> str:
    """Return the page.

    Raises:
        KeyError: a setting has no sentence.
    """
    traits = GPUService.class_own_traits(config=True)
    rows = [(f"`{name}`", _default(trait.default()), trait.help) for name, trait in traits.items()]
    named = attribute_docstrings(Settings)
    settings = [(f"`{one.name}`", _default(one.default), named[one.name]) for one in fields(Settings)]
    head = HEAD + docstring(configure) + "\n\n" + ALSO + table(("setting", "default", "what it means"), rows)
    return head + SETTINGS + table(("setting", "default", "what it means"), settings)


def _default(value: object) -> str:
    return f"`{value!r}`"
