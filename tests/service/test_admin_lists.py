"""The lists for administrators: rights, filters, order, pages, and the same rows as page, CSV and JSON."""

import csv
import html
import io
import re
from dataclasses import replace
from math import inf
from types import SimpleNamespace

import page_world
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_world import PREFIX, Browser, api, asked

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.idle.verdicts import SampleKind, Streak
from gpuspawner.core.queue.calibration import Accuracy
from gpuspawner.core.rules import EndNotice
from gpuspawner.core.units import show_iso
from gpuspawner.service.administration.pages import ROUTES as ADMINISTRATION
from gpuspawner.service.quotas.pages import ROUTES as QUOTAS
from gpuspawner.service.usage.pages import ROUTES as USAGE
from gpuspawner.service.web.lists import Column, Filter, Table, csv_text, list_part, parse_list_state, select_rows

TABLE = Table(
    "things",
    (Column("name", "Name"), Column("size", "Size", "number"), Column("why", "Why", "words")),
    (Filter("find", "Find", within=("name", "why")), Filter("size", "Size", (("1", "one"), ("2", "two")))),
    sort="-size",
)
ROWS = [
    SimpleNamespace(id=str(i), name=f"n{i}", size=None if i % 7 == 0 else i % 3, why="b" * (i % 4)) for i in range(120)
]
AWAY = re.compile(r"/logout|/reference|/cli/|/static/")
"""Links that end the session, or that the hub's other pages and files answer."""


@pytest.fixture
def world(make_web_world):
    made = make_web_world()
    made.observe()
    made.save(page_world.running("busy", user="alice", gpus=(0, 1)))
    lease = page_world.running("idles", user="bob", gpus=(2,), streak=page_world.idle_streak(30))
    made.save(lease, readings=page_world.readings(lease, [1] * 12))
    made.save(page_world.waiting("carols", user="carol", count=4))
    made.save(page_world.reclaimed("gone", user="erin"))
    return made


def addresses():
    """Every address of the admin pages, in each of its forms."""
    listed = [path for path, *_ in (*ADMINISTRATION, *USAGE, *QUOTAS) if path.startswith("/console")]
    for path in listed:
        if "/act/" in path or "/claims/" in path or path.endswith("/mail"):  # dialogs and forms have tests of their own
            continue
        bare, _, forms = path.replace("([^/]+)", "alice").replace("/?", "/").lstrip("/").partition("(")
        yield from (f"{bare}{form.replace(chr(92), '')}" for form in (forms.rstrip(")").split("|") if forms else [""]))


def test_users_do_not_see_the_console(world):
    for path in addresses():
        answer = asked(world, path, "alice", None)
        assert (path, answer.status_code) == (path, 403)
        assert "Only " in answer.text
        assert "custom:gpu:admin)" in answer.text
        asked(world, path, "nobody", 403)
        asked(world, path)


def test_an_invalid_query_is_reported_and_never_a_500(world):
    for path in addresses():
        for query in ("nonsense=1", "sort=nonsense", "page=0", "page=%FF", "find=" + "x" * 200):
            answer = asked(world, f"{path}?{query}", status=None)
            assert (path, query, answer.status_code) == (path, query, 400)
            if path.endswith(".json"):
                assert answer.json()["error"]["message"]


def test_page_json_and_csv_of_a_list_say_the_same(world):
    for name, view in (("workspaces", ""), ("queue", ""), ("ended", ""), ("people", ""), ("gpus", "view=list")):
        page, document = asked(world, f"console/{name}?{view}").text, asked(world, f"console/{name}.json").json()
        lines = list(csv.DictReader(io.StringIO(asked(world, f"console/{name}.csv").text)))
        assert len(lines) == document["found"] == page.count("data-key=")
        for line, row in zip(lines, document["rows"], strict=True):
            assert line == {key: as_cell(key, value) for key, value in row.items()}
            assert row["user"] in page


def as_cell(key, value):
    return "" if value is None else show_iso(value) if key.endswith("_at") or key == "since" else str(value)


def test_the_list_shows_an_unvisited_workspace_as_idle_and_the_end_of_its_notice(world):
    low = Streak(kind=SampleKind.IDLE, because="GPU 3 at 0 %")
    soon = EndNotice("claim-1", world.clock.now() + 60, "train-77 needs it", "admin")
    world.save(page_world.running("new", user="dora", gpus=(3,), streak=low, notice=soon))
    row = next(x for x in asked(world, "console/workspaces.json").json()["rows"] if x["user"] == "dora")
    assert (row["state"], row["ends_at"]) == ("idle", soon.at)


def test_a_list_is_filtered_sorted_and_linked_by_its_address(world):
    text = asked(world, "console/workspaces?state=idle").text
    assert ">bob</a>" in text
    assert ">alice</a>" not in text
    assert '<option value="idle" selected>' in text
    assert "1 to 1 of 1, 2 in all" in text
    assert re.search(r'aria-sort="descending">\s*<a href="[^"]*\?state=idle&amp;sort=idle_gpu_hours">', text)
    assert 'href="/services/gpu/console/workspaces.csv?state=idle"' in text
    users = re.findall(r'console/people/\w+">(\w+)</a>', asked(world, "console/workspaces?sort=user").text)
    assert users == ["alice", "bob"]


@pytest.mark.postgresql
def test_ended_workspaces_are_filtered_by_user_and_reason(world):
    assert asked(world, "console/ended.json?user=er&reason=idle").json()["found"] == 1
    assert asked(world, "console/ended.json?user=r").json()["found"] == 0
    assert asked(world, "console/ended.json?reason=failed").json()["rows"] == []


def test_ended_workspaces_are_sorted_only_by_indexed_columns(world):
    text = asked(world, "console/ended?sort=user").text
    assert re.search(r'aria-sort="ascending">\s*<a href="[^"]*\?sort=-user">User', text)
    assert "sort=reason" in text
    assert "sort=-gpus" not in text
    refused = asked(world, "console/ended.json?sort=gpus", status=400)
    assert (refused.status_code, refused.json()["error"]["limit"]) == (400, "ended_at, user, reason")
    assert asked(world, "console/audit.json?sort=at", status=400).json()["error"]["limit"] == "no other order"


def test_every_link_of_the_service_leads_to_a_page(world):
    admin = Browser(world, "admin")
    coming, seen, missing = ["", "console"], set(), []
    while coming:
        page = coming.pop(0)
        kind = re.sub(r"=[^&]*|[0-9]+", "", page)  # one list in one order is enough
        if kind in seen:
            continue
        seen.add(kind)
        answer = admin.get(world.home + page)
        if answer.status_code != 200:
            missing.append((page, answer.status_code))
        links = re.findall(r'<a [^>]*href="([^"#]+)[^"]*"', answer.text)
        local = [html.unescape(link) for link in links if link.startswith(PREFIX + "/")]
        coming += [one.removeprefix(PREFIX + "/") for one in local if not AWAY.search(one)]
    assert missing == []
    assert {"console/quotas", "console/queue", "console/people/alice"} <= seen


def test_an_empty_console_says_what_its_lists_will_show(make_web_world):
    admin = Browser(make_web_world(), "admin")
    assert "No workspace is running." in admin.look("console/workspaces").text
    queue = admin.look("console/queue").text
    assert "The queue is empty." in queue
    assert "No estimate has an outcome yet." in queue
    assert "No workspace has ended yet." in admin.look("console/ended").text


def test_the_accuracy_of_estimates_is_the_same_on_the_page_and_in_the_api(world):
    report = [Accuracy(600), Accuracy(1800, 40, 25, 24, 20, 10, 8), Accuracy(inf, 3, 1, 0, 0, 0, 0)]
    world.parts.allocator.estimate_records.report = report
    admin = Browser(world, "admin")
    text = re.sub(r"<[^>]*>|\s", " ", admin.look("console/queue").text)
    assert re.search(r"10 min to 30 min +40 +24 +83 % +10 +80 %", text)
    assert re.search(r"More than 30 min +3 +0 +– +0 +–", text)
    assert "8 of 10 times shown in the last 30 days were right within 10 minutes." in text
    shown = api(world, "admin", "admin/estimates").json()["horizons"]
    assert [(one["upto_seconds"], one["times"], one["right_times"]) for one in shown] == [(1800, 24, 20), (None, 0, 0)]
    assert api(world, "alice", "admin/estimates").status_code == 403


@given(st.lists(st.one_of(st.text(), st.integers(), st.none()), min_size=1, max_size=4))
def test_csv_text_is_no_formula_and_numbers_stay_numbers(values):
    columns = [Column(f"c{i}", "") for i in range(len(values))]
    row = SimpleNamespace(**{column.name: value for column, value in zip(columns, values, strict=True)})
    cells = list(csv.reader(io.StringIO(csv_text(columns, [row]), newline="")))[1] if any(values) else []
    for cell, value in zip(cells, values, strict=False):
        assert not isinstance(value, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
        assert not isinstance(value, int) or cell == str(value)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "find": st.sampled_from(["n1", "B", "zzz"]),
            "size": st.sampled_from(["1", "2"]),
            "sort": st.sampled_from(["name", "-name", "size", "-size"]),
        },
    )
)
def test_all_pages_of_a_list_together_have_each_filtered_row_once_in_order(asked_for):
    first = parse_list_state(TABLE, {name: [value] for name, value in asked_for.items()})
    whole = select_rows(ROWS, first)
    pages = list_part(ROWS, first).pages
    found = [row for n in range(1, pages + 1) for row in list_part(ROWS, replace(first, page=n)).rows]
    assert found == whole
    order = first.sort.removeprefix("-")
    known = [getattr(row, order) for row in whole if getattr(row, order) is not None]
    assert known == sorted(known, reverse=first.sort.startswith("-"))
    text = asked_for.get("find", "").casefold()
    expected = {row.id for row in ROWS if text in row.name or text in row.why}
    assert {row.id for row in whole} == {
        name for name in expected if "size" not in asked_for or str(ROWS[int(name)].size) == asked_for["size"]
    }
    assert parse_list_state(TABLE, {k: [v] for k, v in re.findall(r"(\w+)=([^&]*)", first.query())}) == first


def test_an_unknown_argument_is_refused_with_the_known_ones():
    with pytest.raises(RequestRefused, match="find, size, sort, page"):
        parse_list_state(TABLE, {"fnid": ["x"]})
