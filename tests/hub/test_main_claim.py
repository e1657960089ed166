"""A GPU that comes while its user is away: warned of, given back as nobody came, and asked for again at the end."""

import pytest


@pytest.mark.parametrize("python", ["hub6"], indirect=True)  # what the hub has of it, test_main_starts tries on both
def test_who_is_away_is_warned_nobody_comes_and_asking_again_joins_the_end(new_hub, python):
    hub = new_hub(start=False, python=python, gpus=1, wait=2.0, idle="4s", grace="4s", warn="1s")
    text = hub.catalog.read_text()
    assert text.count("keep:") == 1
    hub.catalog.write_text(text.replace("keep:", "claim: 16s\n    keep:"))
    hub.start()
    hub.add_user("holder", "anna", "ben")
    (hub.folder / "homes" / "anna").mkdir(parents=True)
    (hub.folder / "homes" / "anna" / "tells").touch()
    hub.begin("holder", template="lab")
    hub.until("holder", "running")
    hub.begin("anna", template="lab")
    waiting = hub.until("anna", "parked")
    hub.stop("holder")
    came = hub.until("anna", "running")
    assert (came["id"], came["arrival"]["claim_seconds"]) == (waiting["id"], 16.0)
    hub.begin("ben", template="lab")
    ended = hub.until_ended("anna", "nobody came", 90)
    did = [line["action"] for line in hub.audit(ended["id"])]
    assert [one for one in did if one.startswith(("warned", "came", "stop"))] == ["warned nobody came", "stop"]
    assert "Asking again joins the end of the queue." in ended["end"]["why"]
    assert ended["end"]["at"] - ended["running_at"] >= 16.0, "no sooner, though idle for longer than the idle time"
    ben = hub.until("ben", "running")
    hub.begin("anna", template="lab")
    again = hub.until("anna", "parked")
    assert again["id"] != ended["id"]
    assert (again["queue"]["place"], again["asked_at"] > ben["asked_at"]) == (1, True)
