"""Findings of ``gpuspawner server doctor`` about a scheduler that owns the queue."""

from contextlib import nullcontext

import pytest
from reference_server import TOKEN, reference_server

from gpuspawner.adoption.doctor.findings import State
from gpuspawner.adoption.doctor.source_checks import of_scheduler
from gpuspawner.catalog import load_catalog


def catalog(tmp_path, url, token=TOKEN):
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(0o600)
    entries = {"version": 1, "scheduler": {"http": {"url": url, "token_file": str(file)}}}
    return load_catalog({**entries, "templates": {"plain": {"title": "Plain"}}})


def test_where_gpuspawner_owns_the_queue_there_is_nothing_to_find():
    assert list(of_scheduler(load_catalog({"version": 1, "templates": {"plain": {"title": "Plain"}}}))) == []


def test_an_answering_service_is_named_with_its_version(tmp_path):
    with reference_server() as (url, _server):
        (finding,) = of_scheduler(catalog(tmp_path, url))
    assert (finding.state, "eference scheduler" in finding.words) == (State.GOOD, True)


@pytest.mark.parametrize(
    ("served", "token", "words", "remedy"),
    [
        (nullcontext(("http://127.0.0.1:9", None)), TOKEN, "127.0.0.1:9", "Is it running?"),
        (reference_server(), "another", "answered 401", "token_file"),
        (reference_server(hold_seconds=10), TOKEN, "40", "external-scheduler.md"),
    ],
    ids=["away", "another token", "holds a grant too briefly"],
)
def test_a_failed_check_is_reported_with_its_remedy(tmp_path, served, token, words, remedy):
    with served as (url, _server):
        (finding,) = of_scheduler(catalog(tmp_path, url, token))
    assert finding.state is State.BAD
    assert words in finding.words
    assert remedy in finding.remedy
