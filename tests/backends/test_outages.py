"""The log of outages: one line when a part goes away, and one when it answers again."""

from gpuspawner.backends.base import OutageLog
from gpuspawner.core.outages import HUB, Outage

NOW = 1_800_000_000.0


def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_ends_with_its_length(caplog):
    log = OutageLog()
    for second in range(100):
        log.begin(HUB, "The hub does not answer (timed out).", NOW + second, since=NOW - 5)
    assert log.outage == Outage(HUB, NOW - 5, "The hub does not answer (timed out).")
    log.end(NOW + 115)
    log.end(NOW + 116)
    assert log.outage is None
    assert [one.getMessage().partition(" since ")[0] for one in caplog.records] == [
        "The hub has not answered",
        "The hub answers again, after 2 min.",
    ]
    assert [one.fields["event"] for one in caplog.records] == ["outage_begins", "outage_ends"]
    assert caplog.records[1].fields["seconds"] == 120.0


def test_an_outage_whose_reason_changes_goes_on_and_is_not_logged_again(caplog):
    log = OutageLog()
    log.begin(HUB, "timed out", NOW)
    log.begin(HUB, "connection refused", NOW + 60)
    assert log.outage == Outage(HUB, NOW, "connection refused")
    assert len(caplog.records) == 1
