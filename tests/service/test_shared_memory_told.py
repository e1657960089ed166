"""Page, API and command line say that nothing enforces the memory of a share."""

from page_world import CATALOG, api

from gpuspawner.catalog import load_catalog
from gpuspawner.cli.main import main


def test_everybody_reads_whether_the_memory_of_a_share_is_enforced(make_web_world, monkeypatch, capsys):
    half = {"title": "Half", "of": "a100", "shares": 2}
    kinds = {"half": half, "mps-half": {**half, "title": "MPS half", "memory_enforced": True}}
    world = make_web_world(load_catalog({**CATALOG, "gpus": {**CATALOG["gpus"], **kinds}}))
    world.observe()
    offers = {one["kind"]: one["memory_enforced"] for one in api(world, "alice", "offers").json()["offers"]}
    assert (offers["a100"], offers["half"], offers["mps-half"]) == (True, False, True)
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("alice"))
    main(["offers", "--url", world.home.rstrip("/")])
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "40 GiB, not enforced" in rows["half"]
    assert "others on the same GPU may use up its memory" in rows["half"]
    assert "not enforced" not in rows["mps-half"] + rows["a100"]
