"""A catalog that changes at run time: a good one is put in force, a wrong one changes nothing."""

import logging
import os
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.catalog.watched_file import SETTLED_SECONDS, CatalogFile, InForce
from gpuspawner.core.errors import CatalogError, Problem

GOOD = (
    "version: 1\ngpus: {{t4: {{match: T4, memory: 16GiB, price: {price}}}}}\ntemplates: {{lab: {{gpus: {{t4: 1}}}}}}\n"
)
BAD = "version: 1\ntemplates: {lab: {gpus: {t4: 1}}, pytorch: {polcy: x}}\n"


def write(path, text, age_seconds=60.0):
    path.write_text(text)
    at = time.time() - age_seconds
    os.utime(path, (at, at))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "catalog.yaml"
    write(path, GOOD.format(price=1))
    return path


def price(file):
    return file.catalog.gpus["t4"].price_per_hour


def test_a_new_catalog_is_in_force_at_the_next_look(path):
    file = CatalogFile(path)
    assert not file.look(time.time())
    write(path, GOOD.format(price=2))
    assert price(file) == 1
    assert file.look(time.time())
    assert (price(file), file.problem, file.sentences) == (2, "", ())
    assert not file.look(time.time())


def test_a_comment_does_not_change_the_catalog(path):
    file = CatalogFile(path)
    write(path, "# new\n" + GOOD.format(price=1))
    assert not file.look(time.time())
    assert file.problem == ""


def test_a_wrong_catalog_changes_nothing_and_is_logged_once(path, caplog):
    file = CatalogFile(path)
    before = file.catalog
    write(path, BAD)
    for _ in range(3):
        assert not file.look(time.time())
    assert file.catalog is before
    line = f"{path}:2: templates.pytorch.polcy: unknown key 'polcy'. Did you mean `policy`?"
    (sentence,) = file.sentences
    assert sentence == (
        "The catalog was changed and cannot be used. The previous one stays in force. "
        f"{line} gpuspawner server check lists all 2 problems."
    )
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert line in caplog.text
    assert "templates.lab.gpus.t4: no GPU kind" in caplog.text
    write(path, GOOD.format(price=1))
    assert not file.look(time.time())
    assert (file.problem, file.sentences) == ("", ())
    assert file.raw == path.read_bytes()


def test_a_good_catalog_after_a_wrong_one_is_in_force(path):
    file = CatalogFile(path)
    write(path, BAD.replace(", pytorch: {polcy: x}", ""))
    file.look(time.time())
    assert file.sentences[0].endswith("No name is defined. Define one, or remove this."), "and no count of one"
    write(path, GOOD.format(price=3))
    assert file.look(time.time())
    assert (price(file), file.problem) == (3, "")


def test_the_last_good_catalog_stays_without_a_file(path):
    file = CatalogFile(path)
    path.unlink()
    assert not file.look(time.time())
    assert f"{path}: catalog: no such file" in file.problem
    path.mkdir()
    for _ in range(2):
        assert not file.look(time.time())
    assert "not a file" in file.problem
    path.rmdir()
    write(path, GOOD.format(price=2))
    assert file.look(time.time())


def test_a_file_is_read_once_it_is_complete(path):
    file = CatalogFile(path)
    text = GOOD.format(price=2)
    write(path, text[:60], age_seconds=0)
    assert not file.look(time.time())
    assert file.problem == "", "half of it may be there"
    write(path, text, age_seconds=0)
    assert not file.look(time.time())
    assert file.look(time.time()), "two equal contents: the writes are over"
    write(path, GOOD.format(price=3), age_seconds=SETTLED_SECONDS + 0.1)
    assert file.look(time.time())


def test_links_of_a_config_map_are_followed_at_each_look(tmp_path):
    for number in (1, 2):
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        write(folder / "catalog.yaml", GOOD.format(price=number))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "catalog.yaml").symlink_to("..data/catalog.yaml")
    file = CatalogFile(tmp_path / "catalog.yaml")
    (tmp_path / "..data.new").symlink_to("..2")
    (tmp_path / "..data.new").rename(tmp_path / "..data")
    assert file.look(time.time())
    assert price(file) == 2


def test_prepare_and_the_files_that_it_reads(path, tmp_path):
    beside = tmp_path / "factor"
    write(beside, "2")

    def prepare(catalog):
        if catalog.gpus["t4"].price_per_hour == 13:
            raise CatalogError((Problem("c.yaml", 2, "gpus.t4.price", "unlucky", "Choose another."),))
        kinds = {
            n: replace(k, price_per_hour=k.price_per_hour * int(beside.read_text())) for n, k in catalog.gpus.items()
        }
        return replace(catalog, gpus=kinds), ("Restart the hub.",)

    file = CatalogFile(path, prepare, (beside,))
    assert (price(file), file.sentences) == (2, ("Restart the hub.",))
    write(path, GOOD.format(price=13))
    assert not file.look(time.time())
    assert (price(file), file.problem) == (
        2,
        "c.yaml:2: gpus.t4.price: unlucky. Choose another.\n1 problem in the catalog",
    )
    write(path, GOOD.format(price=1))
    write(beside, "5")
    assert file.look(time.time())
    assert price(file) == 5


def test_the_problem_of_another_process_is_reported_while_its_file_exists(path, tmp_path):
    told = tmp_path / "problem"
    told.write_text("c.yaml:2: gpus.t4: wrong. Right.\n1 problem in the catalog")
    file = CatalogFile(path, problem_file=told)
    said = (
        "The catalog was changed and cannot be used. The previous one stays in force. c.yaml:2: gpus.t4: wrong. Right."
    )
    assert file.sentences == (said,)
    write(path, GOOD.format(price=2))
    assert file.look(time.time())
    assert file.sentences == (said,)
    told.unlink()
    assert not file.look(time.time())
    assert file.sentences == ()


def test_a_wrong_catalog_is_refused_at_the_start(path):
    write(path, BAD)
    with pytest.raises(CatalogError, match=f"{path}:2: templates"):
        CatalogFile(path)


def test_a_catalog_without_a_file_does_not_change(path):
    held = InForce(CatalogFile(path).catalog)
    assert (held.problem, held.sentences) == ("", ())


@given(
    st.lists(st.tuples(st.sampled_from([GOOD.format(price=n) for n in range(1, 4)] + [BAD, "", "["]), st.booleans()))
)
def test_promise_10_the_last_good_catalog_is_in_force_after_any_write(tmp_path_factory, writes):
    path = tmp_path_factory.mktemp("c") / "catalog.yaml"
    write(path, GOOD.format(price=1))
    file, good = CatalogFile(path), 1.0
    for text, whole in writes:
        write(path, text, age_seconds=60 if whole else 0)
        changed = file.look(time.time())
        if not whole:
            changed |= file.look(time.time())
        expected = float(text.partition("price: ")[2][0]) if "price" in text else good
        assert (price(file), changed) == (expected, expected != good)
        assert bool(file.problem) == ("price" not in text)
        good = expected


def test_a_separate_service_keeps_the_last_good_catalog_for_its_next_start(tmp_path):
    file, kept = tmp_path / "catalog.yaml", tmp_path / "kept.yaml"

    def start():
        return CatalogFile(file, last_good=kept, keeps=True)

    wrong = "version: 1\ntemplates: {lab: {prize: 1}}\n"
    file.write_text(wrong)
    with pytest.raises(CatalogError):
        start()
    file.write_text("version: 1\ntemplates: {lab: {title: Lab}}\n")
    start()
    file.write_text(wrong)
    again = start()
    assert (list(again.catalog.templates), again.problem.count("unknown key 'prize'")) == (["lab"], 1)
    assert again.sentences[0].startswith("The catalog was changed and cannot be used. The previous one stays in force.")
    kept.write_text(wrong)
    with pytest.raises(CatalogError):
        start()
