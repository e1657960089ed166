"""Keys are read from their models: names, values, documentation, defaults and schemas."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import yaml

from gpuspawner.catalog.keys import descriptions_of, keys_of, schema_of
from gpuspawner.catalog.models import WrittenCatalog
from gpuspawner.core.fields import Internal, Reader, Required, section
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.number_fields import Duration
from gpuspawner.core.text_fields import Name
from gpuspawner.core.units import BadValue


@dataclass(frozen=True)
class WarmUp:
    """A section that no catalog has."""

    __pydantic_config__ = section(first="begin")
    name: Annotated[str, Internal] = ""
    first: Name = ""
    """The first step. Default: none.

    This paragraph is for developers."""
    for_seconds: Duration = 300.0
    """How long it takes."""
    class_: Name = "plain"
    """Its class."""


def all_keys(model=WrittenCatalog, path=""):
    """Yield the path, the model and the key of every key below a model."""
    for name, key in keys_of(model).items():
        yield f"{path}{name}", model, key
        if key.section is not None:
            yield from all_keys(key.section, f"{path}{name}.")


def test_the_catalog_has_all_its_keys():
    paths = [path for path, _, _ in all_keys()]
    assert len(paths) == len(set(paths)) == 271
    assert {"gpus.claim.config.driver", "policies.idle.for", "quotas.types.hard", "hours.when"} <= set(paths)


def test_a_key_is_its_field_without_the_unit_and_needs_nothing_else():
    assert list(keys_of(WarmUp)) == ["begin", "for", "class"]
    assert descriptions_of(WarmUp) == {
        "begin": "The first step. Default: none.",
        "for": "How long it takes. Default: 5m.",
        "class": "Its class. Default: plain.",
    }
    assert schema_of(WarmUp)["properties"]["for"] == {
        "description": "How long it takes. Default: 5m.",
        "x-kubernetes-int-or-string": True,
    }


def test_every_key_is_documented_and_says_what_it_takes():
    for path, model, key in all_keys():
        assert descriptions_of(model)[key.name].endswith("."), path
        assert key.section is not None or key.reader.accepts, path


def test_every_default_that_is_shown_can_be_written():
    shown = 0
    for path, model, key in all_keys():
        _, _, default = descriptions_of(model)[key.name].partition(" Default: ")
        if key.written_default and default == f"{key.written_default}.":
            shown += 1
            assert key.reader.read(yaml.safe_load(key.written_default)) == key.default, path
    assert shown > 40


def test_a_key_without_a_value_is_refused_unless_it_is_a_section():
    def is_refused(reader):
        try:
            reader.read(None)
        except BadValue:
            return True
        return False

    values = [(path, key.reader) for path, _, key in all_keys() if key.reader is not None]
    assert [path for path, reader in values if not is_refused(reader)] == []


@pytest.mark.parametrize(
    ("entry", "written"),
    [
        ("clusters.us.ingress.class_name", "clusters: {us: {ingress: {url: 'http://in', class_name: }}}"),
        ("clusters.us.gateway.namespace", "clusters: {us: {gateway: {url: 'http://in', name: gw, namespace: }}}"),
        ("scheduler.kueue.namespace", "scheduler: {kueue: {queue: workspaces, namespace: }}"),
        ("scheduler.kueue.priority_class", "scheduler: {kueue: {queue: workspaces, priority_class: }}"),
        ("scheduler.volcano.queue", "scheduler: {volcano: {queue: }}"),
        ("scheduler.kai.priority_class", "scheduler: {kai: {priority_class: }}"),
    ],
)
def test_the_name_of_a_kubernetes_object_is_refused_without_a_value(entry, written, head, problems_of):
    (problem,) = problems_of(f"{head}{written}\n")
    assert problem.startswith(f"6 {entry}: none is not the name of a Kubernetes object.")


def test_a_field_of_the_program_is_an_unknown_key(problems_of):
    internal = [name for name in ("name", "replicas", "cluster", "where") if name not in keys_of(GpuKind)]
    assert internal == ["name", "replicas", "cluster", "where"]
    text = "version: 1\ngpus:\n  t4: {match: T4, memory: 16GiB, replicas: 4}\ntemplates: {lab: {gpus: {t4: 1}}}\n"
    (problem,) = problems_of(text)
    assert problem.startswith("3 gpus.t4.replicas: unknown key 'replicas'. Known: title, memory,")


def test_a_schema_has_lists_and_mappings_of_sections_and_what_is_required():
    properties = schema_of(WrittenCatalog)["properties"]
    hours = properties["hours"]["items"]
    assert (properties["hours"]["type"], hours["required"]) == ("array", ["when", "policy", "instead_of"])
    assert properties["templates"]["additionalProperties"]["properties"]["opens"]["maxItems"] == 3


def test_every_required_key_has_an_example_that_its_reader_takes():
    required = [(path, key) for path, _, key in all_keys() if key.required is not None]
    assert len(required) > 10
    for path, key in required:
        assert isinstance(key.reader, Reader), path
        assert isinstance(key.required, Required), path
        assert key.reader.read(key.required.example) is not None, path
