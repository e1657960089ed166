"""The reference pages, made of the code: ``python -m tools.docs.reference`` writes them into docs/reference/."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import click
import yaml

from gpuspawner.catalog.keys import Key, descriptions_of, keys_of
from gpuspawner.catalog.models import WrittenCatalog
from gpuspawner.catalog.resources.definitions import API_GROUP, API_VERSION, KINDS, Kind
from gpuspawner.cli.main import gpuspawner
from gpuspawner.core.events import EVENTS
from gpuspawner.core.leases.exits import EXIT_KINDS, QueueReturn
from gpuspawner.service.api.rest.document import REASONS
from gpuspawner.service.api.routes import document_of_all
from gpuspawner.service.settings import Settings
from gpuspawner.spawner import configure
from gpuspawner.spawner.hub.settings import GPUService
from tools.chart_schema import VALUES, paths, schema
from tools.install import ROOT


def attribute_docstrings(kind: type) -> dict[str, str]:
    """Return by attribute the text that stands right below it in a class, as one paragraph."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(made, ast.ClassDef)
    found = {}
    for one, below in zip(made.body, made.body[1:], strict=False):
        text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else None
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(text, str):
            found[one.target.id] = paragraph(text)
    return found


def docstring(thing: object) -> str:
    """Return a docstring's first paragraph; "" without a docstring."""
    return paragraph((inspect.getdoc(thing) or "").split("\n\n")[0])


def paragraph(text: str) -> str:
    """Return text as one line, code marked as Markdown does."""
    one = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", " ".join(text.split()))
    return one.replace("``", "`")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in lines)


CATALOG_HEAD = """\
# Catalog

The catalog is one YAML file. It says which workspaces users may start, and by which rules. `gpuspawner server check`
reports everything that is wrong with it, with the line. A key may be left out unless it is required. A key without a
value is refused. Write sizes like `64GiB` or `512MiB`, times like `90s`, `30m`, `8h`, `1h30m` or `2d`, and ranges like
`1-4`, `8GiB-256GiB` or `30m-24h`. See [quotas](../how-to/administrators/quotas.md) for examples.
"""
COLUMNS = ("key", "value", "what it means", "default")
DEEPEST_TITLE = 3


def catalog() -> str:
    """Return the page."""
    return CATALOG_HEAD + "".join(_catalog_section("", "Top level", WrittenCatalog))


def _catalog_section(path: str, title: str, model: type) -> Iterator[str]:
    """Yield the table of a section, then those of the sections below it."""
    keys, descriptions = keys_of(model), descriptions_of(model)
    rows = []
    for name, key in keys.items():
        meaning, _, default = paragraph(descriptions[name]).partition(" Default: ")
        rows.append((f"`{name}`", _catalog_value(key), meaning, default.removesuffix(".")))
    level = min(DEEPEST_TITLE, 2 + path.count("."))
    yield f"\n{'#' * level} {title}\n\n{docstring(model)}\n\n{table(COLUMNS, rows)}"
    for name, key in keys.items():
        if key.section is not None:
            below = f"{path}{name}{_suffix(key)}"
            yield from _catalog_section(f"{below}.", f"`{below}`", key.section)


def _suffix(key: Key) -> str:
    return {"map": ".NAME", "list": "[]", "": ""}[key.container]


def _catalog_value(key: Key) -> str:
    if key.reader is not None:
        return f"for each name: {key.reader.accepts}" if key.container else key.reader.accepts
    return {"map": "a section for each name", "list": "a list of sections", "": "a section"}[key.container]


COMMAND_HEAD = """\
# Command line

The pages below are printed by `gpuspawner --help` and `gpuspawner COMMAND --help`. The package that the service offers
is enough for the commands of users and `gpuspawner admin`. The groups `server` and `kube` need the extra `hub`, and
`kube` also the extra `kubernetes`.
"""
WIDTH = 100


def commands() -> str:
    """Return the page. It does not depend on this process's variables and terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSPAWNER_", "JUPYTERHUB_"))}
    with mock.patch.dict(os.environ, kept, clear=True):
        return COMMAND_HEAD + "".join(_command_sections(gpuspawner, "gpuspawner", None))


def _command_sections(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH)
    level = 2 if parent is None or parent.parent is None else 3
    yield f"\n{'#' * level} {context.command_path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from _command_sections(found, below, context)


CONFIGURATION_HEAD = """\
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
    defaults = Settings()
    settings = [(f"`{one.name}`", _default(getattr(defaults, one.name)), named[one.name]) for one in fields(Settings)]
    head = (
        CONFIGURATION_HEAD + docstring(configure) + "\n\n" + ALSO + table(("setting", "default", "what it means"), rows)
    )
    return head + SETTINGS + table(("setting", "default", "what it means"), settings)


def _default(value: object) -> str:
    return f"`{value!r}`"


CHART_HEAD = """\
# Chart values

Values of `helm/gpuspawner`. `catalog` and `image.name` must be written.
[Configure the chart](../how-to/administrators/helm.md) says how they are used.

"""


def chart() -> str:
    """Return the page.

    Raises:
        KeyError: neither a value nor the group that it is in has a comment in values.yaml.
    """
    defaults, found = yaml.safe_load(VALUES.read_text()), schema()
    del found["properties"]["global"]
    found["properties"]["catalog"] = {"description": found["properties"]["catalog"]["description"]}
    rows = []
    for path, one in paths(found):
        default = json.dumps(_at(defaults, path))
        rows.append((f"`{path}`", f"`{default}`", one.get("description") or _group(found, path)))
    return CHART_HEAD + table(("value", "default", "what it means"), rows)


def _at(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values[key]
    return values


def _group(found: dict[str, Any], path: str) -> str:
    """Return the description of the innermost group around a value that has one."""
    told = ""
    for key in path.split("."):
        found = found["properties"][key]
        told = found.get("description", told)
    if not told:
        raise KeyError(path)
    return told


EVENT_HEAD = """\
# Events and ends

## Events

The history of a workspace has these events. You find it on its page and at `GET /api/v1/workspaces/ID/audit`. A message
goes out by mail or chat if `notify_users` is [set](configure.md#settings-of-the-service).

"""
ENDS = """
## Ends

Each workspace ends for exactly one reason. If the user did not decide, the user is told, and can report a wrong stop.

"""
BACK = {QueueReturn.NEVER: "no", QueueReturn.BY_POLICY: "as `preemption.back_in_queue` says", QueueReturn.ALWAYS: "yes"}


def events() -> str:
    """Return the page."""
    rows = []
    for name, kind in EVENTS.items():
        own = ", ".join(f"`{one.name}`" for one in fields(kind))
        rows.append((f"`{name}`", kind.words, docstring(kind), own, kind.told.value))
    happened = table(("event", "begins with", "when", "fields", "message to"), rows)
    ends = [
        (f"`{reason.value}`", end.words, "others" if end.by_others else "its user, or itself", BACK[end.returns])
        for reason, end in EXIT_KINDS.items()
    ]
    return EVENT_HEAD + happened + ENDS + table(("reason", "what people read", "decided by", "back in the queue"), ends)


CUSTOM_RESOURCE_HEAD = f"""\
# Custom resources

Custom resources of `{API_GROUP}/{API_VERSION}` on Kubernetes.
[Request workspaces with kubectl](../how-to/administrators/custom-resources.md) says how to use them.
"""


def custom_resources() -> str:
    """Return the page."""
    return CUSTOM_RESOURCE_HEAD + "".join(part for kind in KINDS for part in _parts(kind))


def _parts(kind: Kind) -> Iterator[str]:
    yield f"\n## {kind.name}\n\n{kind.about} Short name: `{kind.short}`.\n\n"
    if kind.section:
        yield f"The keys of `spec` are those of [`{kind.section}.NAME`](catalog.md) in the catalog.\n"
        return
    yield from _keys(kind.model, "spec")


def _keys(model: type, path: str) -> Iterator[str]:
    keys, descriptions = keys_of(model), descriptions_of(model)
    rows = []
    for name, key in keys.items():
        meaning, _, default = paragraph(descriptions[name]).partition(" Default: ")
        rows.append((f"`{path}.{name}`", _spec_value(key), meaning, default.removesuffix(".")))
    yield table(("key", "value", "what it means", "default"), rows)
    for name, key in keys.items():
        if key.section is not None:
            yield "\n"
            yield from _keys(key.section, f"{path}.{name}")


def _spec_value(key: Key) -> str:
    return key.reader.accepts if key.reader is not None else "a section"


API_HEAD = """\
# API

All paths are below `/services/gpu`. A running service shows this page at `/services/gpu/reference`, and answers it as
OpenAPI 3.1 at `/services/gpu/api/openapi.json`.

"""
METHODS = ("get", "post", "delete")


def api() -> str:
    """Return the page."""
    told = document_of_all()
    models = "".join(_model(name, schema) for name, schema in told["components"]["schemas"].items())
    errors = "\n## Errors\n\n" + table(("status", "when"), [(str(code), reason) for code, reason in REASONS.items()])
    routes = _routes(told["paths"])
    return "".join([API_HEAD, told["info"]["description"], "\n", errors, *routes, "\n## Models\n", models])


def _routes(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in paths.items():
        for method in METHODS:
            if method in operations:
                yield _route(f"{method.upper()} {path}", operations[method])


def _route(name: str, one: Mapping[str, Any]) -> str:
    text = paragraph(f"{one['summary']} {one.get('description', '')}")
    query = [each for each in one["parameters"] if each["in"] == "query"]
    rows = [(f"`{each['name']}`", paragraph(each.get("description", ""))) for each in query]
    arguments = "\n" + table(("argument", "what it is"), rows) if rows else ""
    answers = {code: answer for code, answer in one["responses"].items() if code.startswith("2")}
    sentences = [f"{code}: {_answered(answer['content'])}." for code, answer in answers.items()]
    if "requestBody" in one:
        sentences.insert(0, f"Body: {_type(one['requestBody']['content']['application/json']['schema'])}.")
    sentences.append(f"Errors: {', '.join(code for code in one['responses'] if code not in answers)}.")
    return f"\n## `{name}`\n\n{text}\n{arguments}\n{' '.join(sentences)}\n"


def _answered(content: Mapping[str, Any]) -> str:
    ((kind, one),) = content.items()
    return _type(one["schema"]) if "$ref" in one["schema"] else f"`{kind}`"


def _model(name: str, schema: Mapping[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = [
        (f"`{field}`", _type(one), "" if field in needed else "may be left out", paragraph(one.get("description", "")))
        for field, one in schema.get("properties", {}).items()
    ]
    fields = "\n" + table(("field", "type", "", "what it is"), rows) if rows else ""
    return f"\n### {name}\n\n{paragraph(schema.get('description', ''))}\n{fields}"


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type in words; a model as a link to its section."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"{_type(schema['additionalProperties'])} by name"
    return str(schema.get("type", "anything"))


PAGES: dict[str, Callable[[], str]] = {
    "catalog": catalog,
    "command-line": commands,
    "configure": configuration,
    "chart": chart,
    "events": events,
    "custom-resources": custom_resources,
    "api": api,
}
"""The function that returns the Markdown of each page, by the page's name."""


def write_reference(folder: Path) -> None:
    """Write each page into ``folder``."""
    for name, make in PAGES.items():
        (folder / f"{name}.md").write_text(make())


if __name__ == "__main__":
    write_reference(ROOT / "docs" / "reference")
