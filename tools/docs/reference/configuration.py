"""`configure()` and the service's settings, from their docstrings."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

from gpuspawner.service.settings import Settings
from gpuspawner.spawner import configure
from tools.docs.reference.written import attribute_docstrings, docstring, paragraph, table

HEAD = """\
# configure()

The last lines of `jupyterhub_config.py`:

```python
from gpuspawner.spawner import configure

configure(c, catalog="catalog.yaml")
```

"""
SETTINGS = """
## Settings of the service

These are the keys of `service_settings`. A service of its own reads them from the file that `--settings` names. The
chart has them below `settings`. Times are seconds.

"""
ARGUMENT = re.compile(r"^ {4}(\w+): (.+?)(?=^ {4}\w+: |\Z)", re.MULTILINE | re.DOTALL)


def configuration() -> str:
    """Return the page.

    Raises:
        KeyError: an argument or a setting has no sentence.
    """
    text = inspect.getdoc(configure) or ""
    arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
    told = {name: paragraph(sentence) for name, sentence in ARGUMENT.findall(arguments)}
    parameters = inspect.signature(configure).parameters.values()
    rows = [(f"`{one.name}`", _default(one.default), told[one.name]) for one in parameters]
    named = attribute_docstrings(Settings)
    settings = [(f"`{one.name}`", _default(one.default), named[one.name]) for one in fields(Settings)]
    head = HEAD + docstring(configure) + "\n\n" + table(("argument", "default", "what it means"), rows)
    return head + SETTINGS + table(("setting", "default", "what it means"), settings)


def _default(value: object) -> str:
    return "" if value is inspect.Parameter.empty else f"`{value!r}`"
