"""Where the tests on Kubernetes are run, and what is said where they cannot be."""

import os

import pytest

from tools import check
from tools.progress import StepError


@pytest.fixture(autouse=True)
def _no_cluster_is_named(monkeypatch):
    monkeypatch.delenv(check.NAMED_CLUSTER, raising=False)


@pytest.fixture(params=["not root", "no namespaces"])
def _no_cluster_can_be(request, monkeypatch):
    if request.param == "not root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(check, "WALLS", ("false",))


def test_they_run_where_a_cluster_can_be_started(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(check, "WALLS", ("true",))
    assert check._on_kubernetes(required=False) == [check.ON_KUBERNETES]


@pytest.mark.usefixtures("_no_cluster_can_be")
def test_where_none_can_be_they_are_left_out_and_refused_where_they_are_asked_for():
    assert check._on_kubernetes(required=False) == []
    with pytest.raises(StepError, match="Not run: the tests on Kubernetes start a cluster, as root"):
        check._on_kubernetes(required=True)


@pytest.mark.usefixtures("_no_cluster_can_be")
def test_a_cluster_that_is_named_needs_nothing_of_this_machine(monkeypatch):
    monkeypatch.setenv(check.NAMED_CLUSTER, "/somewhere/kubeconfig")
    assert check._on_kubernetes(required=True) == [check.ON_KUBERNETES]


def test_what_is_checked_beside_fails_the_run_and_says_what_it_found(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(check, "TYPES_LOG", tmp_path / "types.log")
    with (
        check._beside(["sh", "-c", "echo found; exit 1"], os.environ) as process,
        pytest.raises(StepError, match="Types: failed"),
    ):
        check._ends_well("Types", process)
    assert "found" in capsys.readouterr().out
