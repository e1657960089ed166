"""``gpuspawner server simulate``: its report of a history and of generated sessions, its page, and its refusals."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))

from lease_builders import a_lease, slots

from gpuspawner.cli import main
from gpuspawner.cli.server import simulate as command
from gpuspawner.core import events
from gpuspawner.core.idle.arrival import Arrival
from gpuspawner.core.idle.readings import Measure, Source, SourceReading
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.store import AuditLine, ReadingRow, Store
from gpuspawner.service.store.database.backup import note_address

DONE, INVALID, REFUSED, AWAY = 0, 1, 2, 3
NOW = 1_800_000_000.0
DRAFT = """\
version: 1
gpus:
  a100: {title: A100, match: "*A100*", memory: 80GiB}
templates:
  lab: {gpus: {a100: 1}}
policies:
  default: {mode: observe}
  hasty: {idle: {below: 60%, for: 15m, grace: 5m}}
  told: {mode: warn}
"""


@pytest.fixture
def draft(tmp_path):
    path = tmp_path / "draft.yaml"
    path.write_text(DRAFT)
    return str(path)


def test_a_file_that_the_service_left_for_another_store_is_no_history(draft, data, capsys):
    note_address(Path(data), "postgresql://gpu@db/gpu")
    assert main(["server", "simulate", draft, "--data", data]) == INVALID
    told = capsys.readouterr().err
    assert (
        "keeps its store at postgresql://gpu@db/gpu. A file in the folder is out of date. Name the store with" in told
    )
    assert main(["server", "store", "backup", f"{data}/copy", "--data", data]) == REFUSED
    note_address(Path(data), f"sqlite:///{data}/gpuspawner.sqlite")
    assert main(["server", "simulate", draft, "--data", data]) == DONE


@pytest.fixture(autouse=True)
def now(monkeypatch):
    monkeypatch.setattr(command.time, "time", lambda: NOW)


@pytest.fixture
def data(tmp_path):
    """Ada is idle for two hours after a minute's work. Bob's GPU is at 50 % all the time."""
    folder = tmp_path / "data"
    folder.mkdir()
    store = Store(f"sqlite:///{folder / 'gpuspawner.sqlite'}")
    store.open()
    start = NOW - 2 * 3600 - 60
    for name, gpu, percents in (("ada", "a", [90.0, *119 * [0.0]]), ("bob", "b", 120 * [50.0])):
        lease = a_lease(f"{name}-lease", Phase.RUNNING, user=name, held=slots(gpu))
        rows = [
            ReadingRow(
                lease.id, start + 60.0 * (n + 1), 60.0, gpu, percent, 1, 2, "busy" if percent >= 5 else "idle", "",
                holders=1, holders_cpu_cores=0.0, cpu_cores=0.0,
            )
            for n, percent in enumerate(percents)
        ]  # fmt: skip
        store.save([replace(lease, running_at=start)], readings=rows)
    store.close()
    return str(folder)


def run(capsys, *arguments):
    code = main(["server", "simulate", *arguments])
    return code, *capsys.readouterr()


def test_the_history_says_who_was_warned_when_and_whether_rightly(draft, data, capsys):
    code, out, _ = run(capsys, draft, "--data", data)
    assert code == DONE
    assert "2 workspaces held GPUs for 4.0 GPU hours." in out
    assert "The policy would have warned 1 time and stopped 1 of the workspaces: 1 stop, 0 of them while in use." in out
    assert "GPU hours won: 1.3 of the 1.3 that this policy can win (100.0 %)." in out
    (row,) = [line for line in out.splitlines() if line.startswith("ada")]
    assert re.fullmatch(r"ada-leas +ada +1 +2027-01-15 \d\d:\d\d +2027-01-15 \d\d:\d\d +yes +1\.3", row)


def test_a_policy_that_would_be_wrong_is_told_so(draft, data, capsys):
    code, out, _ = run(capsys, draft, "--data", data, "--policy", "hasty", "--json")
    report = json.loads(out)
    assert code == DONE
    assert [policy["name"] for policy in report["policies"]] == ["hasty"]
    assert {(stop["user"], stop["rightly"]) for stop in report["stops"]} == {("ada", True), ("bob", False)}
    assert (report["stopped_in_use"], report["stopped"]) == (1, 2)
    assert report["stopped_in_use_per_100000_session_hours"] == 25_000


def test_each_workspace_is_judged_by_its_own_policy_by_default(draft, data, capsys):
    report = json.loads(run(capsys, draft, "--store", f"sqlite:///{data}/gpuspawner.sqlite", "--json")[1])
    assert [policy["name"] for policy in report["policies"]] == ["default"]


@pytest.fixture
def away(tmp_path):
    """Four workspaces started while their users were away and are idle for two hours.

    dora never opened hers, eve opened hers after 20 minutes, fay did not within her 30 minutes, and gus was there.
    """
    folder = tmp_path / "away"
    folder.mkdir()
    store = Store(f"sqlite:///{folder / 'gpuspawner.sqlite'}")
    store.open()
    start = NOW - 2 * 3600
    told = {"dora": {"arrival": Arrival(7200.0)}, "eve": {"claimed_at": start + 1200}, "fay": {}, "gus": {}}
    for name, changes in told.items():
        lease = a_lease(f"{name}-lease", Phase.RUNNING, user=name, held=slots(name))
        rows = [
            ReadingRow(
                lease.id, start + 60.0 * n, 60.0, name, 0.0, 1, 2, "idle", "",
                holders=1, holders_cpu_cores=0.0, cpu_cores=0.0, soft={},
            )
            for n in range(1, 120)
        ]  # fmt: skip
        over = AuditLine(start + 1800.0, lease.id, name, "gpuspawner", events.NobodyCameYet(1800.0))
        store.save([replace(lease, running_at=start, **changes)], audit=[over] if name == "fay" else [], readings=rows)
    store.close()
    return str(folder)


@pytest.mark.parametrize(
    ("claim", "idle", "nobody", "stopped"),
    [
        ("30m", "3h", 2, {"dora": 30, "fay": 30}),
        ("10m", "3h", 3, {"dora": 10, "eve": 10, "fay": 10}),
        ("90m", "10m", 1, {"dora": 90, "eve": 40, "fay": 110, "gus": 20}),
    ],
)
def test_unvisited_workspaces_are_given_back(draft, away, capsys, claim, idle, nobody, stopped):
    """A claim longer than the recorded one is judged without evidence of whether fay opened hers later."""
    catalog = Path(draft)
    catalog.write_text(f"{DRAFT}  claims: {{claim: {claim}, idle: {{for: {idle}, grace: 10m}}}}\n")
    code, out, _ = run(capsys, draft, "--data", away, "--policy", "claims", "--json")
    report = json.loads(out)
    minutes = {stop["user"]: (stop["stopped_at"] - NOW + 7200) / 60 for stop in report["stops"]}
    assert (code, report["nobody_came"]) == (DONE, nobody)
    assert minutes == pytest.approx(stopped, abs=2)
    text = run(capsys, draft, "--data", away, "--policy", "claims")[1]
    assert "because the user did not open a workspace that started while they were away." in text
    shown = {"30m": "30 min", "10m": "10 min", "90m": "1 h 30 min"}[claim]
    assert f"; {shown} to open a workspace that started from the queue." in text


@pytest.fixture
def cleo(data):
    """Cleo is idle for 35 minutes, works on, and is idle again for 20."""
    store = Store(f"sqlite:///{data}/gpuspawner.sqlite")
    store.open()
    lease = a_lease("cleo-lease", Phase.RUNNING, user="cleo", held=slots("c"))
    rows = [
        ReadingRow(
            lease.id, NOW - 3600 + 60.0 * n, 60.0, "c", percent, 1, 2, "busy" if percent >= 5 else "idle", "",
            holders=1, holders_cpu_cores=0.0, cpu_cores=0.0,
        )
        for n, percent in enumerate([*35 * [0.0], *5 * [70.0], *20 * [0.0]], 1)
    ]  # fmt: skip
    store.save([replace(lease, running_at=NOW - 3600)], readings=rows)
    store.close()


def test_a_warned_workspace_is_named_with_the_time_and_outcome(draft, data, cleo, tmp_path, capsys):
    path = tmp_path / "report.html"
    code, out, _ = run(capsys, draft, "--data", data, "--html", str(path))
    assert code == DONE
    assert "The policy would have warned 2 times and stopped 1 of the workspaces: 1 stop" in out
    assert "Only warned: 1 time, 0 while in use. Outcomes: used again 1." in out
    (row,) = [line for line in out.splitlines() if line.startswith("cleo")]
    assert re.fullmatch(r"cleo-lea +cleo +1 +2027-01-15 \d\d:\d\d +yes +used again after 6 min", row)
    report = json.loads(run(capsys, draft, "--data", data, "--json")[1])
    (one,) = report["warned_only"]
    assert (one["user"], one["then"], one["rightly"]) == ("cleo", "used again", True)
    assert (one["warned_at"], one["then_at"]) == (NOW - 1800, NOW - 1440)
    assert re.search(
        r"<h2>Only warned</h2>.*<td>cleo</td>.*<td>used again after 6 min</td>", path.read_text(), re.DOTALL
    )


def test_a_policy_in_warn_mode_stops_no_workspace(draft, data, cleo, tmp_path, capsys):
    path = tmp_path / "report.html"
    _, out, _ = run(capsys, draft, "--data", data, "--policy", "told", "--html", str(path))
    assert "mode warn as it is, others as if they enforced; nothing is changed." in out
    assert "The policy would have warned 2 times and stopped 0 of the workspaces" in out
    assert re.search(r"^ada-leas +ada +1 +2027-01-15 \d\d:\d\d +yes +left idle$", out, re.MULTILINE)
    assert "Nothing would have been stopped." in path.read_text()
    assert "<td>ada</td>" in path.read_text()


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.addresses = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in {"src", "href", "xlink:href"}]


def test_the_page_is_whole_in_itself_and_says_the_same_numbers(draft, data, tmp_path, capsys):
    path = tmp_path / "report.html"
    code, _, err = run(capsys, draft, "--data", data, "--policy", "hasty", "--html", str(path))
    assert (code, err) == (DONE, f"Charts: {path}\n")
    text = path.read_text()
    page = _Page()
    page.feed(text)
    assert page.addresses == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "url(" not in text
    assert page.tags.count("svg") == 2 + 6, "one strip each, and the legend"
    assert "prefers-color-scheme: dark" in text
    assert re.search(r'<b class="bad">1</b>of 2 stops in use', text)
    assert "<td>bob</td>" in text


def test_names_of_people_are_no_markup(draft, data, tmp_path, capsys):
    store = Store(f"sqlite:///{data}/gpuspawner.sqlite")
    store.open()
    store.save([replace(store.leases.get("ada-lease"), user="<script>alert(1)</script>")])
    store.close()
    run(capsys, draft, "--data", data, "--html", str(tmp_path / "report.html"))
    assert "<script>" not in (tmp_path / "report.html").read_text()


def test_generated_sessions(draft, tmp_path, capsys):
    path = tmp_path / "report.html"
    code, out, _ = run(capsys, draft, "--sessions", "300", "--seed", "2", "--html", str(path))
    assert code == DONE
    assert "generated sessions (seed 2)" in out
    assert "0 while in use" in out
    assert run(capsys, draft, "--sessions", "300", "--seed", "2")[1] == out, "the same seed says the same"
    assert "what the sessions do" in path.read_text()


def test_nothing_stopped_is_said(draft, data, tmp_path, capsys):
    code, out, _ = run(capsys, draft, "--data", data, "--days", "0.01", "--html", str(tmp_path / "r.html"))
    assert code == DONE
    assert "stopped 0 of the workspaces" in out
    assert "Nothing would have been stopped." in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(["none.yaml", "--sessions", "10"], INVALID, "none.yaml", id="no catalog"),
        pytest.param(["DRAFT", "--data", "none"], INVALID, "none/gpuspawner.sqlite does not exist", id="no history"),
        pytest.param(["DRAFT", "--data", "DRAFT"], INVALID, "is a file, not a folder. --data names", id="file"),
        pytest.param(
            ["DRAFT", "--sessions", "10", "--policy", "nigth"], INVALID, "it has default, hasty, told", id="policy"
        ),
        pytest.param(["DRAFT", "--sessions", "0"], INVALID, "0 is not from 1 to 1000000 hours", id="no hours"),
        pytest.param(["DRAFT", "--sessions", "nan"], INVALID, "is not from 1 to", id="hours that are no number"),
        pytest.param(["DRAFT", "--data", "DATA", "--days", "31"], INVALID, "31 is not from 1 to 30", id="days"),
        pytest.param(["DRAFT", "--store", "DATA"], INVALID, "not the address", id="folder as address"),
        pytest.param(["DRAFT", "--store", "odd://x"], INVALID, "not the address", id="unknown kind of database"),
        pytest.param(["DRAFT", "--store", "sqlite:///none.sqlite"], AWAY, "cannot be read", id="no database"),
        pytest.param(
            ["DRAFT", "--data", "DATA", "--days", "0.0001"], REFUSED, "Nothing is recorded", id="nothing since"
        ),
        pytest.param(
            ["DRAFT", "--data", "DATA", "--html", "none/r.html"],
            INVALID,
            "none/r.html cannot be written",
            id="no folder",
        ),
    ],
)
def test_an_impossible_simulation_is_reported_in_one_line(
    draft, data, capsys, monkeypatch, tmp_path, arguments, code, said
):
    monkeypatch.chdir(tmp_path)
    given = [{"DRAFT": draft, "DATA": data}.get(argument, argument) for argument in arguments]
    returned, _, err = run(capsys, *given)
    assert (returned, said in err) == (code, True), err
    assert "Traceback" not in err


def test_it_says_how_far_it_is_where_it_takes_long(draft, capsys, monkeypatch):
    ticks = iter(range(10_000))
    monkeypatch.setattr(command.time, "monotonic", lambda: float(next(ticks)))
    assert re.match(r"(simulating: \d+ %\n)+$", run(capsys, draft, "--sessions", "60")[2])


def test_one_source_must_be_named(draft, capsys):
    assert main(["server", "simulate", draft]) == INVALID
    assert "Write one of --data, --store and --sessions." in capsys.readouterr().err


def test_a_reader_who_has_seen_enough_is_no_error_and_the_page_is_written_all_the_same(draft, tmp_path):
    page = tmp_path / "report.html"
    read, write = os.pipe()
    os.close(read)
    command_line = [
        sys.executable,
        "-m",
        "gpuspawner.cli",
        "server",
        "simulate",
        draft,
        "--sessions",
        "50",
        "--html",
        str(page),
    ]
    with os.fdopen(write, "w") as nobody_reads:
        ended = subprocess.run(command_line, stdout=nobody_reads, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, f"Charts: {page}\n")
    assert "</html>" in page.read_text()


@pytest.mark.parametrize("content", [b"no database at all\n" * 100, b"SQLite format 3\0" + bytes(500)])
def test_a_file_that_is_no_database_is_told(draft, tmp_path, capsys, content):
    (tmp_path / "gpuspawner.sqlite").write_bytes(content)
    code, _, told = run(capsys, draft, "--data", str(tmp_path))
    assert code == AWAY
    assert told.startswith("The history cannot be read (")


def test_another_program_s_database_is_told(draft, tmp_path, capsys):
    with closing(sqlite3.connect(tmp_path / "gpuspawner.sqlite")) as other:
        other.execute("create table theirs (a)")
    code, _, told = run(capsys, draft, "--data", str(tmp_path))
    assert (code, "It is not gpuspawner's: name the database that its service writes." in told) == (AWAY, True)


def test_a_folder_with_signs_of_addresses_in_its_name_is_read_and_nothing_is_made(draft, data, tmp_path, capsys):
    odd = tmp_path / "a?b#c%20d"
    odd.mkdir()
    (Path(data) / "gpuspawner.sqlite").rename(odd / "gpuspawner.sqlite")
    assert run(capsys, draft, "--data", str(odd))[0] == DONE
    assert not (tmp_path / "a").exists()


def seen(percent):
    return asdict(SourceReading("c", Source.MONITOR, Measure.UTILIZATION, percent, 65.0, 5.0, 1.0))


def test_the_value_of_each_source_is_reported(capsys, draft, data):
    store = Store(f"sqlite:///{data}/gpuspawner.sqlite")
    store.open()
    start = NOW - 2 * 3600 - 60
    lease = a_lease("eve-lease", Phase.RUNNING, user="eve", held=slots("c"))
    rows = [
        ReadingRow(
            lease.id, start + 60.0 * (n + 1), 60.0, "c", 0.0, 1, 2, "idle" if n % 20 else "busy", "", holders=1,
            holders_cpu_cores=0.0, cpu_cores=0.0, sources=[seen(0.0 if n % 20 else 90.0)],
        )
        for n in range(120)
    ]  # fmt: skip
    store.save([replace(lease, running_at=start)], readings=rows)
    store.close()
    code, printed, _ = run(capsys, draft, "--data", data)
    assert code == DONE
    assert (
        "The policy would have warned 1 time and stopped 1 of the workspaces: 1 stop, 0 of them while in use."
        in printed
    )
    assert "Without the workspaces' own monitors: 2 stops, 1 of them while in use." in printed
    assert "DCGM exporter" not in printed, "none was recorded"
