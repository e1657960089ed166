"""A structural schema of a model: what the API server checks, and ``kubectl explain`` reads.

It says what a shape can say. What a text means, such as ``1h-8h``, the catalog's own parsers judge.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator

from gpuspawner.catalog import parsers
from gpuspawner.catalog.entry import Entry, Section, Sections
from gpuspawner.catalog.parsers import LONGEST_GROUP, LONGEST_IMAGE, LONGEST_NAME, MOST_PACKAGES, TextOf, WholeNumber
from gpuspawner.catalog.rules import parsers as of_rules
from gpuspawner.catalog.values import OPENS
from gpuspawner.core.idle.policy import Mode
from gpuspawner.core.idle.soft import SOFT_EVIDENCE
from gpuspawner.core.rules import Per

Schema = dict[str, Any]
MOST_ITEMS = 100
"""Of a list that says no other bound, and of a mapping. Arbitrary: the API server counts rules' cost by it."""
NUMBER_OR_TEXT: Schema = {"x-kubernetes-int-or-string": True}
NAME: Schema = {"type": "string", "maxLength": LONGEST_NAME, "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"}
_ONE = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
ASKED: Schema = {"type": "string", "maxLength": 2 * LONGEST_NAME + 1, "pattern": f"^{_ONE}(@{_ONE})?$"}
OF_HUB: Schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_GROUP}
IMAGE: Schema = {"type": "string", "maxLength": LONGEST_IMAGE}


def _one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _list_of(items: Schema, most: int = MOST_ITEMS) -> Schema:
    return {"type": "array", "items": items, "maxItems": most}


WRITTEN: Mapping[Callable[..., Any], Schema] = {
    parsers.parse_name: NAME,
    parsers.parse_kind: NAME,
    parsers.parse_group: OF_HUB,
    parsers.parse_groups: _list_of(OF_HUB),
    parsers.parse_kinds: _list_of(NAME),
    parsers.parse_asked_kind: ASKED,
    parsers.parse_asked_kinds: _list_of(ASKED),
    parsers.parse_labels: _list_of(NAME),
    parsers.parse_packages: _list_of({"type": "string", "maxLength": 200}, MOST_PACKAGES),
    parsers.parse_opens: _list_of(_one_of(*OPENS), len(OPENS)),
    parsers.parse_soft_evidence: _list_of(_one_of(*SOFT_EVIDENCE), len(SOFT_EVIDENCE)),
    parsers.parse_warnings: _list_of(NUMBER_OR_TEXT, 5),
    parsers.parse_image: IMAGE,
    parsers.parse_own_images: IMAGE,
    parsers.parse_yes: {"type": "boolean"},
    parsers.parse_mode: _one_of(*(mode.value for mode in Mode)),
    of_rules.parse_each: _one_of("user"),
    of_rules.parse_everybody: {"type": "boolean", "enum": [True]},
    of_rules.parse_full: _one_of("wait", "refuse"),
    of_rules.parse_others_wait: _one_of("allow", "refuse"),
    of_rules.parse_per: _one_of(*(per.value for per in Per)),
}
"""What each parser takes. All else is a number or a text."""


def schema_of(model: type[Entry]) -> Schema:
    """Return the schema of a model, described by its docstrings. Its defaults are texts: None and sections are none."""
    hints, said = get_type_hints(model, include_extras=True), descriptions(model)
    properties, needed = {}, []
    for name, field in model.model_fields.items():
        key = field.alias or name
        properties[key] = {"description": said[name], **_value(hints[name])}
        if field.is_required():
            needed.append(key)
        elif isinstance(field.default, str):
            properties[key]["default"] = field.default
    found = {"type": "object", "description": inspect.getdoc(model), "properties": properties}
    return {**found, "required": needed} if needed else found


def _value(hint: Any) -> Schema:
    if get_origin(hint) is Annotated:
        inner, *more = get_args(hint)
        (before,) = (one for one in more if isinstance(one, BeforeValidator))
        return _value(inner) if before.func in {Section.func, Sections.func} else _read_by(before.func)
    if get_origin(hint) is dict:
        return {"type": "object", "maxProperties": MOST_ITEMS, "additionalProperties": _value(get_args(hint)[1])}
    if get_origin(hint) is UnionType:
        return _value(get_args(hint)[0])
    inner_model = schema_of(hint)
    return {key: inner_model[key] for key in inner_model if key != "description"}


def _read_by(parse: Callable[..., Any]) -> Schema:
    if isinstance(parse, TextOf):
        return {"type": "string", "maxLength": parse.longest}
    if isinstance(parse, WholeNumber):
        return {"type": "integer", "minimum": parse.least, "maximum": parse.most}
    return dict(WRITTEN.get(parse, NUMBER_OR_TEXT))


@cache
def descriptions(model: type[Entry]) -> Mapping[str, str]:
    """Return what the text below each attribute of a model says, as one paragraph."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for one, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr):
            found[one.target.id] = " ".join(ast.literal_eval(after.value).split())
    return found
