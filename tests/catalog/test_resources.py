"""The custom resources' definitions: made of the catalog's models, and committed as they are made."""

import yaml
from jupyterhub import orm

from gpuspawner import __version__
from gpuspawner.catalog.models import PolicyEntry, TemplateEntry
from gpuspawner.catalog.parsers import LONGEST_IMAGE
from gpuspawner.catalog.requests.models import RequestEntry
from gpuspawner.catalog.requests.own import LONGEST_ADDRESS
from gpuspawner.catalog.requests.resolve import OPTIONS
from gpuspawner.catalog.resources.definitions import FIXED, KINDS, definition
from gpuspawner.catalog.rules.models import QuotaEntry
from gpuspawner.cli.kube.crd import definitions_text
from tools.install import ROOT

CHART = ROOT / "helm" / "gpuspawner-crds"


def spec_of(kind):
    (version,) = definition(kind)["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]


def test_the_chart_holds_what_the_command_prints():
    committed = (CHART / "templates" / "crds.yaml").read_text()
    assert committed == definitions_text(), "gpuspawner kube crd > helm/gpuspawner-crds/templates/crds.yaml"
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_each_key_of_the_models_is_described_in_its_kind():
    for kind, model in zip(KINDS, (RequestEntry, TemplateEntry, PolicyEntry, QuotaEntry), strict=True):
        keys = {field.alias or name for name, field in model.model_fields.items()}
        properties = spec_of(kind)["properties"]
        assert set(properties) == keys
        assert all(one["description"].endswith(".") for one in properties.values())


def test_a_request_can_tell_of_any_server_of_the_hub_and_of_all_that_other_doors_take():
    properties = spec_of(KINDS[0])["properties"]
    assert properties["server"]["maxLength"] == orm.Spawner.name.type.length
    assert properties["own_image"]["maxLength"] == LONGEST_IMAGE
    assert properties["repository"]["maxLength"] >= LONGEST_ADDRESS + len("ssh://")


def test_a_request_has_every_option_of_a_start_and_only_its_lifetime_may_change():
    assert set(RequestEntry.model_fields) == {"user", "server", "ready_at", *OPTIONS}
    assert set(RequestEntry.model_fields) - set(FIXED) == {"lifetime"}
