"""The definitions of custom resources are made of the catalog's models, and the committed ones are current."""

import yaml
from jupyterhub import orm

from gpuspawner import __version__
from gpuspawner.catalog.keys import keys_of
from gpuspawner.catalog.quota_models import QuotaLimits
from gpuspawner.catalog.requests.start_options import LONGEST_ADDRESS, OPTIONS
from gpuspawner.catalog.resources.definitions import FIXED, KINDS, RequestSpec, definition
from gpuspawner.catalog.template_models import Template
from gpuspawner.cli.kube.objects import definitions_text
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.text_fields import LONGEST_IMAGE
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


def test_each_key_of_a_model_is_described_in_its_kind():
    models = RequestSpec, Template, LifecyclePolicy, QuotaLimits, LifecyclePolicy
    for kind, model in zip(KINDS, models, strict=True):
        keys = set(keys_of(model))
        properties = spec_of(kind)["properties"]
        assert set(properties) == keys
        assert all(one["description"].endswith(".") for one in properties.values())


def test_a_request_has_room_for_every_server_image_and_repository():
    properties = spec_of(KINDS[0])["properties"]
    assert properties["server"]["maxLength"] == orm.Spawner.name.type.length
    assert properties["own_image"]["maxLength"] == LONGEST_IMAGE
    assert properties["repository"]["maxLength"] >= LONGEST_ADDRESS + len("ssh://")


def test_a_request_has_every_option_of_a_start_and_only_its_lifetime_may_change():
    assert set(keys_of(RequestSpec)) == {"user", "server", "ready_at", *OPTIONS}
    assert set(keys_of(RequestSpec)) - set(FIXED) == {"lifetime"}
