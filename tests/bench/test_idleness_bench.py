"""The peers' rules and the families of ``bench/idleness``: what each looks at, and what it misses."""

from dataclasses import replace
from pathlib import Path

import pytest
from families import FAMILIES, sessions_of
from figures import OURS, figures, table
from peers import PEERS, sampled, without
from picture import picture
from sources import FAMILIES_HEAD, families

from gpuspawner.simulate.habits import Frontend, Sharing, Work
from gpuspawner.simulate.sessions import Session, sessions
from gpuspawner.simulate.timeline import Timeline

DOCS = Path(__file__).parents[2] / "docs" / "measurements"
HOUR = 3600.0
END = 6 * HOUR
ALWAYS, NEVER = Timeline([(0.0, END, 100.0)]), Timeline()
FIRST_MINUTE = Timeline([(0.0, 60.0, 100.0)])
RULE = {peer.name: peer.rule for peer in PEERS}
JUPYTER = {"Kubeflow v1", "RHOAI", "Kubeflow v2", "idle-culler", "Determined"}
GPU = {"gpu-pruner", "dstack", "Run:ai", "average", "cron script"}
CONNECTIONS = {"Coder", "SkyPilot"}


def session(*work: Timeline, **more) -> Session:
    plain = Session(
        seed=2,
        work_kind=Work.STEADY,
        frontend=Frontend.NOTEBOOK,
        sharing=Sharing.EXCLUSIVE,
        end=END,
        work=work or (NEVER,),
        cpu=NEVER,
        held=Timeline([(0.0, 1e9, 1.0)]),
    )
    return replace(plain, **more)


def who_stops(one: Session) -> set[str]:
    return {name for name, rule in RULE.items() if rule(one, 0.0) is not None}


def test_the_rules_are_those_of_the_notes() -> None:
    assert set(RULE) == JUPYTER | GPU | CONNECTIONS


def test_all_tools_stop_a_workspace_unused_for_half_an_hour() -> None:
    stops = {name: rule(session(), 0.0) for name, rule in RULE.items()}
    assert all(at is not None and 1800 <= at <= 2160 for at in stops.values()), stops


@pytest.mark.parametrize(
    ("one", "spared_by"),
    [
        pytest.param(session(ALWAYS, kernel=ALWAYS), JUPYTER | GPU, id="a cell that prints, no browser"),
        pytest.param(session(ALWAYS, kernel=ALWAYS, seed=1), (JUPYTER | GPU) - {"idle-culler"}, id="one that does not"),
        pytest.param(session(ALWAYS, terminal=ALWAYS), (JUPYTER | GPU) - {"Kubeflow v1"}, id="in a terminal"),
        pytest.param(session(ALWAYS, frontend=Frontend.DETACHED), GPU | {"SkyPilot"}, id="detached"),
        pytest.param(session(ALWAYS, connected=ALWAYS), GPU | CONNECTIONS, id="over SSH"),
        pytest.param(session(browser=ALWAYS), {"idle-culler", "Determined", "Coder"}, id="an open tab"),
        pytest.param(session(ALWAYS, NEVER), {"Run:ai", "average"} | {"cron script"}, id="one GPU of two"),
        pytest.param(
            session(sharing=Sharing.SHARED, neighbours=ALWAYS), GPU, id="nothing but a neighbour on its shared GPU"
        ),
        pytest.param(session(ALWAYS, sharing=Sharing.MIG), GPU - {"cron script"}, id="at work on MIG"),
    ],
)
def test_workspaces_spared_by_each_signal(one: Session, spared_by: set[str]) -> None:
    assert set(RULE) - who_stops(one) == spared_by


def test_unreachable_is_idle_to_some_and_active_to_others() -> None:
    work = {"kernel": ALWAYS, "terminal": ALWAYS, "browser": ALWAYS, "connected": ALWAYS}
    one = session(ALWAYS, faults=Timeline([(HOUR, 3 * HOUR, 1.0)]), **work)
    assert who_stops(one) == {"Kubeflow v1", "RHOAI", "gpu-pruner", "dstack", "cron script"}
    assert who_stops(replace(one, faults=NEVER)) == set()
    lost = session(ALWAYS, lost=Timeline([(HOUR, END, 1.0)]), **work)
    assert who_stops(lost) == {"cron script"}


def test_a_clock_set_on_by_an_hour_makes_stamps_old() -> None:
    one = session(kernel=Timeline([(0.0, 2 * HOUR, 1.0)]), steps=((2 * HOUR + 90, HOUR),))
    assert RULE["RHOAI"](one, 0.0) == 2 * HOUR + 120
    assert RULE["Determined"](one, 0.0) == 2.5 * HOUR
    busy = replace(one, kernel=Timeline([(0.0, 3 * HOUR, 1.0)]))
    assert RULE["RHOAI"](busy, 0.0) == 3.5 * HOUR


def test_a_mean_calls_bursts_idle_and_rare_readings_miss_them() -> None:
    bursts = Timeline((60.0 * n + 9, 60.0 * n + 11, 100.0) for n in range(360))
    assert who_stops(session(bursts)) & GPU == {"average", "cron script", "Run:ai"}


def test_a_rule_begins_with_the_start_of_the_workspace() -> None:
    one = session(FIRST_MINUTE, kernel=FIRST_MINUTE)
    for name, rule in RULE.items():
        at = rule(one, 3 * HOUR)
        assert at is not None
        assert 3.5 * HOUR <= at <= 3.6 * HOUR, name


def test_parts() -> None:
    holes = Timeline([(10.0, 20.0, 1.0), (30.0, 40.0, 1.0)])
    assert without(Timeline([(0.0, 35.0, 5.0)]), holes).spans == ((0.0, 10.0, 5.0), (20.0, 30.0, 5.0))
    assert without(Timeline([(12.0, 18.0, 5.0)]), holes).spans == ()
    assert sampled(Timeline([(61.0, 89.0, 1.0)]), 30.0).spans == ()
    assert sampled(Timeline([(59.0, 61.0, 1.0)]), 30.0).spans == ((60.0, 61.0, 1.0),)


def test_figures_and_picture() -> None:
    rows = figures(sessions(3, 150), PEERS)
    assert [row.name for row in rows] == [*OURS, *RULE]
    assert len({row.totals.session_hours for row in rows}) == 1, "all have the same sessions"
    assert rows[0].cells()[2] == f"0 (< {3e5 / rows[0].totals.session_hours:.0f})"
    assert len(table(row.cells() for row in rows).splitlines()) == 1 + len(rows)
    drawn = picture(rows, "150 hours & more")
    assert drawn.count('class="won"') == len(rows)
    assert "150 hours &amp; more" in drawn
    assert "http://" not in drawn.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_works_in_its_pattern_and_then_lies_idle(name: str) -> None:
    one, again = (next(sessions_of(FAMILIES[name], 3, 1)) for _ in range(2))
    assert (one.used.spans, one.end) == (again.used.spans, again.end), "a seed gives the same sessions"
    last = one.used.last_end(one.end) or 0.0
    assert one.end - last >= 5 * HOUR
    assert bool(one.used) is not (name == "idle, never used")
    assert all(one.held.at(begin) for begin, _, _ in one.used.spans), "what works holds its GPU"


def test_sources_that_see_all_of_the_time_stop_no_family_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    """A small share of what ``--families`` shows."""
    found = families(5, 1, ("video", "endpoint, visitors", "job every 29"))
    assert len(found.families) == 5
    assert found.hours > 50
    head = dict(zip(FAMILIES_HEAD, range(len(FAMILIES_HEAD)), strict=True))
    for line in found.families:
        for source in ("DCGM", "monitor", "monitor with GPM"):
            assert line[head[f"{source}: in use"]] == "0 of 1", line
    wrong = {line[0]: line[2:4] for line in found.rules}
    assert set(RULE) < set(wrong)
    assert wrong["gpuspawner: monitor"] == wrong["gpuspawner: DCGM"] == ("0", "0 of 5")
    assert wrong["cron script"][1] != "0 of 5"


def test_the_monitor_sees_tiny_kernels_and_those_of_mig_devices_by_gpm_only() -> None:
    head = dict(zip(FAMILIES_HEAD, range(len(FAMILIES_HEAD)), strict=True))
    found = families(5, 1, ("tiny kernels", "MIG, kernels without CPU")).families
    for source, stopped in (("monitor", "1 of 1"), ("monitor with GPM", "0 of 1")):
        assert [line[head[f"{source}: in use"]] for line in found] == [stopped, stopped]


def test_the_documents_picture_and_tables_are_of_these_rules() -> None:
    page, drawn = (DOCS / "idle-stops.md").read_text(), (DOCS / "idleness.svg").read_text()
    of_families = (DOCS / "idle-families.md").read_text()
    for name in (*OURS, *RULE):
        assert f"| {name} |" in page
        assert f">{name}</text>" in drawn
    for name in (*FAMILIES, *RULE):
        assert f"| {name} |" in of_families
