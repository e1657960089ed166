"""Every template answers whatever its data may be: variants come from the models, so a new field is covered at once."""

from dataclasses import replace
from fractions import Fraction

import pytest
from page_world import CATALOG, NOW, Browser, in_grace, reclaimed, running, waiting
from variants import sample, variants

from gpuspawner.catalog import load_catalog
from gpuspawner.core.administration import Announcement, Restriction
from gpuspawner.core.calendar import Window
from gpuspawner.core.events import Answered
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.queue.preemption import Preemption
from gpuspawner.core.quotas.ledger import QuotaAmount
from gpuspawner.core.quotas.quota_requests import QuotaRequest, RequestOutcome
from gpuspawner.core.rules import Account, LimitedResource, QuotaGrant
from gpuspawner.core.schedules import Schedule
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.personal import TokenRow
from gpuspawner.service.web import base

QUOTAS = {"each-user": {"each": "user", "gpus": {"soft": 1, "hard": 4}, "gpu_hours": {"per": "week", "hard": 40}}}
TEAMS = {"vision": {"title": "Vision"}}
ALICE = Owner("hub-1", "alice born")
LINE = AuditLine(NOW, "", "", "admin", Answered("Yes."))
IDS = frozenset({"id", "key", "user", "request", "options"})
LEASES = {
    "waits": waiting("one", "alice"),
    "runs": running("one"),
    "warned": in_grace("one"),
    "ended": reclaimed("one"),
}
CLAIM = Preemption("one", "k", "a100", 1, Account("vision"), "", "admin", NOW, asked=1)


@pytest.fixture(scope="module")
def rendered():
    """The templates that were rendered by the tests of this module."""
    return set()


@pytest.fixture
def world(make_web_world, rendered, monkeypatch):
    made = make_web_world(load_catalog({**CATALOG, "teams": TEAMS, "quotas": QUOTAS}))
    get = base.templates().get_template
    monkeypatch.setattr(base.templates(), "get_template", lambda name, *x: (rendered.add(name), get(name, *x))[1])
    made.observe()
    return made


def look(world, browsers, pages, failing, label):
    """Record the pages that answer with an error for a variant."""
    for who, page in pages:
        response = browsers[who].get(world.home + page)
        if response.status_code >= 500:
            failing.append((label, page))


def browsers_of(world):
    return {name: Browser(world, name) for name in ("admin", "alice")}


CONSOLE = ("", "/gpus", "/workspaces", "/ended", "/queue", "/use", "/people", "/people/alice", "/limits", "/grants")
LISTS = [("alice", ""), ("alice", "inbox"), ("alice", "quota"), *(("admin", f"console{page}") for page in CONSOLE)]


@pytest.mark.parametrize("phase", LEASES)
def test_pages_of_a_workspace_answer_for_every_variant_of_a_lease(world, phase):
    browsers, failing, made = browsers_of(world), [], []
    fixed = IDS | {"phase", *(["ended_at"] if phase == "ended" else [])}
    for number, (label, variant) in enumerate(variants(LEASES[phase], skip=fixed)):
        name = f"x{number}"
        lease = replace(variant, id=name, key=replace(variant.key, server=name))
        if lease.live:
            world.call(world.parts.registry._leases.put, lease)
        made.append((label, lease))
    world.parts.store.save([lease for _, lease in made])
    for label, lease in made:
        look(world, browsers, [("alice", f"workspaces/{lease.id}")], failing, label)
    look(world, browsers, LISTS, failing, "all of them")
    assert failing == []


def test_the_page_of_quotas_answers_for_every_variant_of_a_claim(world):
    browsers, failing = browsers_of(world), []
    of_user = replace(CLAIM, account=Account("", "alice born"), user="alice")
    for made in (CLAIM, replace(CLAIM, account=None, external="A <cluster>"), of_user):
        for label, claim in variants(made, skip=IDS | {"kind", "count"}):
            world.parts.store.preemptions.save([claim])
            look(world, browsers, [("admin", "console/quotas")], failing, label)
    assert failing == []


def test_the_pages_of_quotas_answer_for_every_variant_of_a_grant(world):
    browsers, failing = browsers_of(world), []
    of_team = Account("vision", "")
    grant = QuotaGrant(
        "one", of_team, LimitedResource.GPUS, Fraction(2), NOW - 60, NOW + 3600, why="why", by="admin", made_at=NOW - 60
    )
    for label, row in variants(grant, skip={"id", "what", "amount", "since", "until", "kind"}):
        world.parts.allocator.accounting._grants = [row]
        look(world, browsers, [("admin", "console/quotas"), ("alice", "quota")], failing, label)
    assert failing == []


def test_the_pages_of_requests_answer_for_every_variant_of_a_request(world):
    browsers, failing = browsers_of(world), []
    amount, account = QuotaAmount(LimitedResource.GPUS, "", Fraction(2)), Account("vision", "alice born")
    asked = QuotaRequest("one", "hub-1", "alice born", "alice", account, amount, None, NOW + 3600, "why", NOW - 60)
    closed = [one for one in RequestOutcome if one not in {RequestOutcome.OPEN, RequestOutcome.EXPIRED}]
    made = [asked, *(asked.close(outcome, NOW, "admin", "No") for outcome in closed)]
    fixed = {"id", "hub", "user_created", "amount", "account", "outcome", "answered_at"}
    for label, one in (x for base_one in made for x in variants(base_one, skip=fixed)):
        world.parts.quota_requests._requests = {"one": one}
        pages = [("admin", f"console/requests?show={show}") for show in ("open", "answered")]
        look(world, browsers, [*pages, ("alice", "quota/request"), ("admin", "inbox")], failing, label)
    assert failing == []


def test_the_console_answers_for_every_variant_of_a_restriction(world):
    browsers, failing = browsers_of(world), []
    world.save(running("one"))
    made = replace(sample(Restriction), id="one", since=NOW, until=NOW + 60)
    weekly = [("every", replace(made, every=Window(frozenset({1, 3}), 540, 660)))]
    for label, one in (*variants(made, skip={"id", "every"}), *weekly):
        world.parts.restrictions._live = (one,)
        world.parts.store.restrictions.save([one], [LINE])
        pages = [
            ("admin", "console"),
            ("admin", "console/gpus"),
            ("admin", "console/gpu-health"),
            ("alice", "workspaces/one"),
        ]
        pages += [("admin", "console/restrictions"), ("admin", "console/audit"), ("admin", "console/usage")]
        look(world, browsers, pages, failing, label)
    assert failing == []


def test_pages_answer_for_every_variant_of_a_message_a_wish_and_a_token(world):
    browsers, failing = browsers_of(world), []
    message = replace(sample(Announcement), id="one", until=NOW + 600, made_at=NOW - 60)
    for label, one in variants(message, skip={"id"}):
        world.parts.store.announcements.save(one, [LINE])
        world.call(world.parts.announcements.load)
        look(world, browsers, [("admin", "console/restrictions"), ("alice", "inbox"), ("alice", "")], failing, label)
    wish = Schedule("one", "alice", "", {"template": "pytorch"}, 480, (0, 1), NOW)
    for label, one in variants(wish, skip={"id", "minute", "days", "options"}):
        world.parts.store.schedules.delete(ALICE, "one", LINE)
        world.parts.store.schedules.add(ALICE, one, 9, LINE)
        look(world, browsers, [("alice", ""), ("alice", "ready/one")], failing, label)
    token = TokenRow("one", "x", "hub-1", "admin born", "admin", "a laptop", NOW, NOW + 600, None)
    for number, (_, one) in enumerate(variants(token, skip={"id", "hub", "user_created"})):
        world.parts.store.tokens.add(replace(one, id=str(number), hash=str(number)), LINE)
    look(world, browsers, [("admin", "tokens")], failing, "tokens")
    assert failing == []


def test_no_template_is_left_out(world, rendered):
    """It must run last: each template that has data was rendered with variants of its models."""
    browsers = browsers_of(world)
    world.save(running("one"))
    for page in ("workspaces/one/size", "secrets", "calendar", "calendar/link"):
        browsers["alice"].get(world.home + page)
    for page in (
        "console/calendar",
        "console/catalog",
        "reference",
        "login-code",
        "nothing",
        "console/act/drain",
        "console/roles",
        "console/statements",
        "stored",
    ):  # these show what comes from no model
        browsers["admin"].get(world.home + page)
    elsewhere = {"base.html", "admin.html", "admin_catalog_restore.html"}  # the last needs a catalog in a file
    pages = {name for name in base._TEMPLATES if not name.startswith("_") and name not in elsewhere}
    assert pages - rendered == set()
