"""The catalog of a file and of custom resources: a wrong resource affects neither the file nor other resources."""

import os
import time

import pytest

from gpuspawner.catalog.load import load_text
from gpuspawner.catalog.resources.merging import LARGEST_SPEC_BYTES, Added, merge
from gpuspawner.catalog.watched_file import CatalogFile
from gpuspawner.core.errors import CatalogError
from gpuspawner.core.idle.policies import Mode

FILE = """
version: 1
gpus: {a100: {match: A100, memory: 80GiB}, t4: {match: T4, memory: 16GiB}}
templates: {lab: {gpus: {t4: 1}}}
quotas: {each-user: {each: user, gpus: {hard: 4}}}
"""


def template(name, created="2026-01-01T00:00:00Z", good=None, **spec):
    return Added(f"uid-{name}", "templates", name, spec or {"gpus": {"a100": 1}}, created, good)


def merged(*added, file=FILE):
    return merge(file.encode(), "catalog.yaml", added)


def test_without_resources_the_catalog_is_that_of_the_file():
    catalog, judged = merged()
    assert catalog == load_text(FILE)
    assert (judged.refused, judged.in_force) == ({}, {})


def test_entries_of_file_and_resources_refer_to_each_other():
    night = Added("p", "policies", "night", {"mode": "enforce", "idle": {"for": "20m"}})
    quota = Added("q", "quotas", "all", {"everybody": True, "gpus": {"hard": 9}})
    big = template("big", extends="lab", policy="night", gpus={"a100": "1-2"})
    catalog, judged = merged(quota, big, night)
    assert judged.refused == {}
    assert judged.in_force == {one.uid: one.spec for one in (quota, big, night)}
    assert list(catalog.templates) == ["lab", "big"], "the file's first is preselected"
    assert catalog.templates["big"].policy == "night"
    assert catalog.policies["night"].idle.for_seconds == 1200
    assert [one.name for one in catalog.rules.quotas] == ["each-user", "all"]


def test_a_name_of_the_file_is_refused_and_the_files_entry_stays():
    catalog, judged = merged(template("lab"), template("other"))
    assert list(catalog.templates["lab"].gpus) == ["t4"]
    assert list(judged.in_force) == ["uid-other"]
    assert judged.refused["uid-lab"].startswith("templates.lab: the catalog's file has one of this name, which stays.")


def test_a_wrong_resource_has_the_messages_of_check_and_does_not_affect_others():
    wrong = {"gpus": {"a10": 1}, "polcy": "x"}
    with pytest.raises(CatalogError) as error:
        load_text(FILE.replace("lab: {gpus: {t4: 1}}", "lab: {gpus: {t4: 1}}, bad: {gpus: {a10: 1}, polcy: x}"))
    catalog, judged = merged(template("bad", **wrong), template("good"))
    assert list(catalog.templates) == ["lab", "good"]
    said = judged.refused["uid-bad"]
    for problem in error.value.problems:
        path = problem.entry.replace("templates.bad", "spec")
        assert f"{path}: {problem.wrong}. {problem.right}" in said


def test_the_last_good_version_of_a_resource_stays_until_it_does_not_fit_either():
    good = {"gpus": {"a100": 2}}
    bad = template("big", good=good, gpus={"a10": 1})
    catalog, judged = merged(bad)
    assert list(catalog.templates["big"].gpus) == ["a100"]
    assert "a10" in judged.refused["uid-big"]
    assert judged.in_force == {"uid-big": good}
    without = FILE.replace("a100: {match: A100, memory: 80GiB}, ", "")
    catalog, judged = merged(bad, file=without)
    assert (list(catalog.templates), judged.in_force) == (["lab"], {})


def test_a_resource_that_extends_a_refused_one_is_refused():
    catalog, judged = merged(template("base", gpus={"a10": 1}), template("over", extends="base"))
    assert list(catalog.templates) == ["lab"]
    assert judged.refused["uid-over"].startswith("spec.extends: nothing in templates is called `base`")


def test_the_older_of_two_conflicting_resources_stays():
    one = Added("new", "quotas", "one", {"user": "ada", "gpus": {"hard": 1}}, "2026-02-01T00:00:00Z")
    two = Added("old", "quotas", "two", {"user": "ada", "gpus": {"hard": 2}}, "2026-01-01T00:00:00Z")
    _, judged = merged(one, two)
    assert list(judged.in_force) == ["old"]
    assert judged.refused["new"].startswith("spec: it limits the same users as `two`")


def test_of_two_resources_with_one_name_the_older_stays():
    def policy(uid, created, good=None, **spec):
        return Added(uid, "policies", "night", spec, created, good)

    old, new = (
        policy("old", "2026-01-01", mode="warn"),
        policy("new", "2026-01-02", {"mode": "observe"}, mode="enforce"),
    )
    catalog, judged = merged(new, old)
    assert catalog.policies["night"].mode is Mode.WARN
    assert list(judged.refused) == ["new"]
    assert "an older resource of the cluster or of the namespace has this name" in judged.refused["new"]
    assert judged.in_force == {"old": {"mode": "warn"}}


def test_wrong_names_large_specs_and_profiles_are_refused():
    long = template("long", description="x" * LARGEST_SPEC_BYTES)
    _, judged = merged(template("a.b"), long, template("slug", profile="gpu"))
    assert judged.in_force == {}
    assert "a.b" not in load_text(FILE).templates
    assert judged.refused["uid-long"] == "spec: larger than 4 KiB. Write it in the catalog's file."
    assert judged.refused["uid-slug"].startswith("spec.profile: the profiles of the hub are known to it alone.")
    assert judged.refused["uid-a.b"].startswith("spec: ")


def test_a_wrong_file_is_refused_with_any_resources():
    with pytest.raises(CatalogError, match="templates: missing"):
        merged(template("only"), file="version: 1\ngpus: {a100: {match: A100, memory: 80GiB}}\n")


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "catalog.yaml", FILE)


def write(path, text):
    path.write_text(text)
    at = time.time() - 60
    os.utime(path, (at, at))
    return path


def test_resources_are_added_to_the_last_good_file(path):
    file = CatalogFile(path)
    file.added = (template("big"),)
    assert file.look(time.time())
    assert not file.look(time.time())
    write(path, "version: 1\n")
    file.added = (template("big"), template("other"))
    assert file.look(time.time())
    assert (list(file.catalog.templates), file.raw) == (["lab", "big", "other"], FILE.encode())
    assert "templates: missing" in file.problem
    write(path, FILE.replace("lab:", "big: {gpus: {t4: 1}}, lab:"))
    assert file.look(time.time())
    assert (list(file.catalog.templates["big"].gpus), file.problem) == (["t4"], "")
    assert list(file.judged.refused) == ["uid-big"]
    file.added = ()
    assert file.look(time.time())
    assert list(file.catalog.templates) == ["big", "lab"]
