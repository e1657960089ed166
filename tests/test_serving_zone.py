"""Clock times of the service are those of the catalog's zone, whatever the container's are."""

import logging
import re
import time

import pytest

from gpuspawner.core.rules import Rules
from gpuspawner.core.units import show_time
from gpuspawner.service.log import set_up_log, show_times_in

NOON_UTC = 1_800_014_400.0  # 2027-01-15


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(("zone", "shown"), [("Europe/Zurich", "13:00"), ("Asia/Kolkata", "17:30"), ("UTC", "12:00")])
def test_times_are_shown_by_the_clocks_of_the_catalogs_zone(zone, shown):
    show_times_in(zone)
    assert show_time(NOON_UTC, NOON_UTC - 7200) == shown


def test_a_catalog_without_a_zone_means_utc_in_times_as_in_days_wherever_the_machine_is(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    show_times_in(Rules.timezone)
    assert show_time(NOON_UTC, NOON_UTC - 7200) == "12:00"


def test_each_line_of_the_log_names_its_offset(monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    show_times_in("Asia/Kolkata")
    set_up_log()
    logging.getLogger("gpuspawner").warning("a line")
    assert re.fullmatch(r"\[gpu \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+0530 WARNING\] a line\n", capsys.readouterr().err)


def test_where_the_system_knows_no_such_zone_the_log_says_so(monkeypatch, caplog):
    show_times_in("Asia/Kolkata")
    assert not caplog.messages
    monkeypatch.setattr(time, "tzset", lambda: None)  # as where the system has no data, and Python has
    show_times_in("Europe/Zurich")
    assert "knows no time zone Europe/Zurich" in caplog.text
