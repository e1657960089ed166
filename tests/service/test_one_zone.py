"""All times that a person reads are in one zone, the catalog's, named once; files for programs name the offset."""

import csv
import io
import re
import time
from dataclasses import replace
from datetime import datetime, timezone
from email.message import Message
from zoneinfo import ZoneInfo

import pytest
from page_world import CATALOG, NOW, Browser, running, waiting

from gpuspawner.catalog import load_catalog
from gpuspawner.cli import output
from gpuspawner.cli.main import main
from gpuspawner.core.units import show_time

ZONE = ZoneInfo("Asia/Kolkata")


@pytest.fixture
def world(make_web_world, monkeypatch):
    with monkeypatch.context() as patch:  # the reader's machine is elsewhere
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        catalog = load_catalog(CATALOG)
        made = make_web_world(replace(catalog, rules=replace(catalog.rules, timezone="Asia/Kolkata")))
        made.observe()
        made.save(running("runs", "alice", gpus=(0,)))
        made.save(waiting("waits", "bob"))
        yield made
    time.tzset()


@pytest.fixture
def run(world, monkeypatch, capsys):
    def run(*arguments, name="alice"):
        monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token(name))
        assert main([*arguments, "--url", world.home.rstrip("/")]) == 0
        return capsys.readouterr()

    return run


def test_columns_of_a_command_are_in_the_services_zone_which_is_named_once(world, run):
    lease = world.lease("runs")
    out, err = run("show", "runs")
    assert f"Ends:      {show_time(lease.deadline_at, NOW, ZONE)}" in out
    assert re.fullmatch(r"Times are in Asia/Kolkata \(\d\d:\d\d now\)\.\n", err)
    out, err = run("queue", name="bob")
    assert show_time(world.lease("waits").asked_at, NOW, ZONE) in out
    assert err.count("Asia/Kolkata") == 1


def test_texts_without_a_time_and_output_for_programs_name_no_zone(run):
    assert run("offers").err == ""
    assert run("list", "--json").err == ""


@pytest.mark.parametrize("named", [None, "", "../etc", "Asia", "Nowhere/Land"])
def test_an_answer_that_names_no_zone_changes_nothing(named, monkeypatch):
    monkeypatch.setattr(output._Printed, "zone", ZONE)
    headers = Message()
    if named is not None:
        headers["Gpuspawner-Timezone"] = named
    output.note_zone(headers)
    assert output._Printed.zone is ZONE


def test_pages_name_the_zone(world):
    assert "Times in Asia/Kolkata" in Browser(world, "alice").look("workspaces/runs").text


def test_csv_has_iso_8601_with_the_offset(world, run):
    run("stop", "waits", name="bob")
    (line, *_) = csv.DictReader(io.StringIO(run("admin", "audit", "--csv", name="admin").out))
    at = datetime.fromisoformat(line["at"])
    assert (line["at"][-6:], at.timestamp()) == ("+05:30", NOW)
    text = Browser(world, "admin").look("console/workspaces.csv").text
    ends = {row["ends_at"] for row in csv.DictReader(io.StringIO(text))} - {""}
    expected = datetime.fromtimestamp(world.lease("runs").deadline_at, timezone.utc)
    assert {datetime.fromisoformat(one) for one in ends} == {expected.replace(microsecond=0)}
