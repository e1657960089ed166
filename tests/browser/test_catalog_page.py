"""The page Catalog in a real Chromium: a change by its form, the preview, roll-back in a dialog, and axe."""

import pytest
import yaml
from kube_api import KubeApi
from playwright.sync_api import expect
from service_pages import open_page, pages

from gpuspawner.backends.custom_resources.cluster import CustomResources
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog.watched_file import CatalogFile
from gpuspawner.service.custom_resources.entries import Entries
from gpuspawner.service.rules.catalog_reload import reload_of


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "catalog.yaml"
    found.write_text(yaml.safe_dump(pages.CATALOG, sort_keys=False))
    return found


@pytest.fixture
def world(tmp_path, path, monkeypatch):
    made = pages.World(tmp_path, monkeypatch, CatalogFile(path, source=path))
    made.observe()
    made.save(pages.running("runs"))
    made.call(reload_of(made.parts).look)
    made.signing_in = "admin"
    yield made
    made.close()


def test_a_template_is_changed_by_its_form_and_rolled_back_in_a_dialog(browser, world, path, assert_accessible):
    before = path.read_text()
    page = open_page(browser, world, "console/catalog?part=templates&entry=pytorch")
    page.get_by_label("Title").fill("PyTorch 2.9")
    page.get_by_label("Title").press("Enter")
    expect(page.get_by_role("heading", name="What changes for whom")).to_be_focused()
    expect(page.get_by_role("complementary", name="What changes for whom")).to_contain_text(
        "1 running workspace goes on without a change."
    )
    expect(page.get_by_role("region", name="Changes")).to_contain_text("title: PyTorch 2.9")
    assert path.read_text() == before
    assert_accessible(page, phone=True)
    page.get_by_label("Reason").fill("a new image")
    page.get_by_role("button", name="Save version 2").click()
    expect(page.get_by_text("Version 2 is saved: templates: changed pytorch.")).to_be_visible()
    assert yaml.safe_load(path.read_text())["templates"]["pytorch"]["title"] == "PyTorch 2.9"
    page.get_by_role("link", name="Roll back to version 1").click()
    dialog = page.get_by_role("dialog", name="Roll back to version 1?")
    expect(dialog).to_contain_text("templates: changed pytorch.")
    assert_accessible(page, ".gs-dialog[open]")
    dialog.get_by_label("Reason").fill("not yet")
    dialog.get_by_role("button", name="Roll back to version 1").click()
    expect(page.get_by_text("Version 3 is saved")).to_be_visible()
    assert path.read_text() == before
    assert page.problems == []


@pytest.fixture
def cluster(tmp_path, path, monkeypatch):
    """A service that may write the custom resources of an API server of the tests, and not its file."""
    made, cluster = pages.World(tmp_path, monkeypatch, CatalogFile(path)), KubeApi()
    made.observe()
    made.call(cluster.start)
    cluster.rights.add(("patch", "devgpuvmtemplates"))
    metadata = {"name": "big", "uid": "uid-big", "namespace": "jhub", "creationTimestamp": "then", "generation": 1}
    big = {"kind": "DevGPUVMTemplate", "metadata": metadata, "spec": {"title": "Big", "gpus": {"a100": 4}}}
    made.call(cluster.put, big)
    settings = ClusterSettings("jhub", cluster.kubeconfig(tmp_path), custom_resources="jhub")
    resources = CustomResources(settings)
    entries = Entries(made.parts.in_force, resources, made.parts.clock, made.parts.store)
    object.__setattr__(made.parts, "entries", entries)  # as the service starts with them
    made.call(reload_of(made.parts).look)
    made.signing_in = "admin"
    yield made, cluster
    made.call(resources.close)
    made.call(cluster.stop)
    made.close()


def test_a_custom_resource_is_changed_by_its_form(browser, cluster, assert_accessible):
    world, there = cluster
    page = open_page(browser, world, "console/catalog?part=templates&entry=big")
    expect(page.get_by_text("This entry is a custom resource in the cluster, a DevGPUVMTemplate.")).to_be_visible()
    page.get_by_label("Title").fill("Bigger")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("region", name="Changes")).to_contain_text("title: Bigger")
    assert_accessible(page, phone=True)
    page.get_by_label("Reason").fill("a better name")
    page.get_by_role("button", name="Save version 3").click()
    expect(page.get_by_text("Version 3 is saved: templates: changed big.")).to_be_visible()
    (found,) = there.objects["/apis/gpuspawner.io/v1alpha1/devgpuvmtemplates"].values()
    assert found["spec"] == {"title": "Bigger", "gpus": {"a100": 4}}
    assert page.problems == []
