"""`make test`: the stages that run, and the message if a part cannot run."""

import os

import pytest

from tools import check, programs
from tools.progress import StepError


@pytest.fixture(autouse=True)
def _no_named_cluster(monkeypatch):
    monkeypatch.delenv(check.NAMED_CLUSTER, raising=False)


@pytest.fixture(params=["not root", "no namespaces"])
def _no_cluster_possible(request, monkeypatch):
    if request.param == "not root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(check, "CAN_NAMESPACES", ("false",))


def test_the_cluster_stage_runs_where_a_cluster_can_start(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(check, "CAN_NAMESPACES", ("true",))
    assert check.can_run_cluster(required=False)


@pytest.mark.usefixtures("_no_cluster_possible")
def test_without_a_cluster_make_test_says_so_and_make_test_cluster_refuses(capsys):
    assert not check.can_run_cluster(required=False)
    assert "a cluster needs root, namespaces and control groups" in capsys.readouterr().out
    with pytest.raises(StepError, match="To use a cluster of yours, set GPUSPAWNER_TEST_KUBECONFIG"):
        check.can_run_cluster(required=True)


@pytest.mark.usefixtures("_no_cluster_possible")
def test_a_named_cluster_needs_nothing_of_this_machine(monkeypatch):
    monkeypatch.setenv(check.NAMED_CLUSTER, "/somewhere/kubeconfig")
    assert check.can_run_cluster(required=True)
    assert check.cluster_stage(slow=True).workers == 0


def test_every_test_folder_is_in_exactly_one_stage():
    stages = [check.decisions_stage(slow=True), *check.stages(slow=True, with_cluster=True)]
    named = [argument for stage in stages for argument in stage.arguments if argument.startswith("tests/")]
    others = next(stage.arguments for stage in stages if "tests" in stage.arguments)
    assert len(named) == len(set(named))
    assert {f"--ignore={folder}" for folder in named} == {one for one in others if one.startswith("--ignore=")}


def test_only_make_test_all_runs_slow_tests():
    quick = [check.decisions_stage(slow=False), *check.stages(slow=False, with_cluster=True)]
    assert all(stage.arguments[-2:] == check.NOT_SLOW for stage in quick)
    everything = [check.decisions_stage(slow=True), *check.stages(slow=True, with_cluster=True)]
    assert not any("not slow" in stage.arguments for stage in everything)


def test_a_failed_parallel_check_fails_the_run_and_prints_its_findings(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(check, "TYPES_LOG", tmp_path / "types.log")
    with (
        check._beside(["sh", "-c", "echo found; exit 1"], os.environ) as process,
        pytest.raises(StepError, match="Types: failed"),
    ):
        check._require_success("Types", process)
    assert "found" in capsys.readouterr().out


def test_an_ordinary_user_reads_what_is_missing_and_how_to_install_it(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(programs, "find", lambda _name: None)
    assert programs.ensure(["prometheus"]) == ["prometheus"]
    assert programs.remedy(["prometheus"]) == "sudo apt-get install --no-install-recommends prometheus"
