"""The page on quotas: its examples are one catalog, and users read these sentences about its rules."""

import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import page_world
import pytest
import yaml
from harness import pages
from page_world import api, waiting

from gpuspawner.catalog import load_catalog, load_text
from gpuspawner.catalog.requests.visibility import choose_team, given_instead, gpus_asked
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core.calendar import find_opening
from gpuspawner.core.errors import CatalogError, RequestRefused
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.backfill import backfill_end
from gpuspawner.core.queue.calibration import Form, ShownStart
from gpuspawner.core.queue.class_holds import HeldGpus
from gpuspawner.core.queue.estimates import QueuePosition
from gpuspawner.core.quotas.budgets import BudgetBalances, budget_refusal
from gpuspawner.core.quotas.limits import (
    LimitUsage,
    Requester,
    counted_account,
    effective_limits,
    limit_line,
    quota_refusal,
    quota_wait_sentence,
    share_sentence,
)
from gpuspawner.core.rules import Accounts, BudgetUnit, EndNotice, Rate
from gpuspawner.schedulers.base import Offer
from gpuspawner.service.preemption.preemptions import new_claim
from gpuspawner.service.preemption.words import BEFORE_LATER, BY_SHARE, claim_reason, notice_words
from gpuspawner.service.quotas.rules_page import rules_of
from gpuspawner.service.start.check import starts_now
from gpuspawner.service.waiting.presenter import queue_sentence
from gpuspawner.service.waiting.reasons import PositionChanges

DOCUMENT = pages.page("explanation/quotas")
SENTENCES = (Path(__file__).parent / "rule_sentences.txt").read_text().splitlines()
ZONE = "Europe/Zurich"
WEDNESDAY = 1_795_596_600.0
"""Wed 25 Nov 2026, 09:50 in Zurich."""


def combined(into, more):
    """One mapping of both, those within them too."""
    for key, value in more.items():
        into[key] = combined(into[key], value) if isinstance(value, dict) and key in into else value
    return into


@pytest.fixture(autouse=True)
def in_zurich(monkeypatch):
    monkeypatch.setenv("TZ", ZONE)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def catalog():
    """All examples as one catalog."""
    entries = {}
    for block in pages.blocks(DOCUMENT, "yaml"):
        combined(entries, yaml.safe_load(block))
    return load_catalog(entries)


def request(**changes):
    return replace(page_world.request(), **changes)


def rule_sentences(catalog):
    """Return the text of all rules on the pages."""
    return {one for rule in rules_of(catalog, catalog.rules.quotas, WEDNESDAY) for one in rule.sentences}


def of_teams(catalog):
    with pytest.raises(RequestRefused) as refused:
        choose_team(catalog.rules, {"vision", "speech"}, "", {})
    yield str(refused.value)


def of_quotas(catalog):
    rules, kinds, contact = catalog.rules, catalog.gpus, catalog.rules.contact
    (own, *_) = effective_limits(Requester("alice", "alice born", ""), rules, (), WEDNESDAY)
    team = next(
        one for one in effective_limits(Requester("alice", "alice born", "vision"), rules, (), WEDNESDAY) if one.of_all
    )
    yield limit_line(own, Fraction(1), Fraction(0), kinds)
    yield limit_line(own, Fraction(0), Fraction(3), kinds)
    yield share_sentence(own, LimitUsage(Fraction(1), Fraction(2)), kinds)
    yield str(quota_refusal(own, LimitUsage(Fraction(3), Fraction(2)), 3, kinds, contact))
    at = WEDNESDAY + 6 * 3600 + 1200
    yield quota_wait_sentence(
        team, LimitUsage(Fraction(4), Fraction(0), Fraction(30), at, WEDNESDAY), 4, kinds, contact
    )


def of_budgets(catalog):
    rules, asker = catalog.rules, Requester("sam", "sam born", "speech")
    student = next(one for one in rules.quotas if one.name == "student")
    account, week = counted_account(student, "sam born", "speech"), student.budgets[0]

    def verdict(used, gpus, hours):
        accounts = Accounts({(account, BudgetUnit.GPU_HOURS, week.per): used})
        return BudgetBalances(WEDNESDAY, (), rules, accounts).verdict(asker, Rate(gpus), WEDNESDAY, hours * 3600)

    bound = verdict(40 - Fraction(13, 3), Fraction(1), 8).latest_end
    yield starts_now(request(), catalog, None, WEDNESDAY, latest_end=bound)
    limit, remedy = budget_refusal(verdict(Fraction(40), Fraction(1), 8), 0, rules.contact, WEDNESDAY)
    yield str(RequestRefused("gpu_hours", "1 GPU for 8 h", limit, remedy))


def of_the_queue(catalog):
    offer = Offer("a100", 0, 4, 0, 2, simulated=False)
    yield queue_sentence(QueuePosition(2, 3, 2400.0, 1200.0), request(), catalog, offer)
    shown = ShownStart(Form.RANGE, None, 900.0, 2100.0)
    yield queue_sentence(QueuePosition(2, 3, 2400.0, 1200.0), request(), catalog, offer, shown=shown)
    shown = ShownStart(Form.TIME, 1200.0, 900.0, 2100.0)
    yield queue_sentence(QueuePosition(2, 3, 2400.0, 1200.0), request(), catalog, offer, shown=shown)
    changes, (one, two, three, four) = PositionChanges(), (waiting(name, count=1) for name in "abcd")
    changes.see(dict(zip("abcd", range(1, 5), strict=True)), (one, two, three, four), catalog.gpus, WEDNESDAY)
    granted = [replace(lease, phase=Phase.RESERVED) for lease in (one, two)]
    changes.see({"c": 1, "d": 2}, (*granted, three, four), catalog.gpus, WEDNESDAY + 22 * 60)
    yield changes.words("d", WEDNESDAY + 3600)
    passes = backfill_end(WEDNESDAY + 6 * 3600 + 600, WEDNESDAY)
    yield starts_now(request(), catalog, None, WEDNESDAY, latest_end=passes)
    (hold,) = catalog.rules.holds
    when = find_opening(hold.window, WEDNESDAY, ZoneInfo(ZONE))
    held = HeldGpus(hold, when, (), catalog.gpus[hold.kind].title).bound(WEDNESDAY)
    yield starts_now(request(gpu="t4", lifetime_seconds=86400), catalog, None, WEDNESDAY, latest_end=held)


def of_gpus(catalog):
    yield gpus_asked(request(gpu="h100"), catalog) + given_instead(catalog, "a100", "h100")
    at = WEDNESDAY + 5 * 3600
    asked = {"kind": "a100", "count": 2, "key": "k"}
    for whom, returns in (({"external": "Training job train-77"}, BEFORE_LATER), ({"lease": "waits"}, BY_SHARE)):
        claim = new_claim("admin", WEDNESDAY, **asked, **whom)
        notice = EndNotice("claim", at, claim_reason(claim, catalog), "admin")
        yield notice_words(notice, at - 900, returns=returns, mail=False)


def of_the_file(catalog):
    in_force = InForce(catalog)
    entries = "gpus: {a100: {match: A100, memory: 80GiB}}\ntemplates: {pytorch: {gpus: {a100: 1-4}}}\n"
    quotas = "quotas:\n  vision: {group: vision, gpus: {soft: 40, hard: 32}}\n"
    with pytest.raises(CatalogError) as wrong:
        load_text(f"version: 1\n{entries}{quotas}", "catalog.yaml")
    in_force.problem = str(wrong.value)
    yield from in_force.sentences


def of_grants(world):
    alice = {"user": "alice", "what": "4 GPUs", "until": "Friday", "why": "the paper"}
    yield api(world, "admin", "quota-grants", "POST", alice).json()["words"]


def test_users_read_these_sentences_about_the_rules_of_the_page(catalog, make_web_world):
    world = make_web_world(catalog)
    world.clock.at = WEDNESDAY
    makers = (of_teams, of_quotas, of_budgets, of_the_queue, of_gpus, of_the_file)
    made = [sentence for maker in makers for sentence in maker(catalog)] + list(of_grants(world))
    rules = rule_sentences(catalog)
    assert [one for one in SENTENCES if one not in {*made, *rules}] == []
    assert [one for one in made if one not in SENTENCES] == []


def test_every_rule_of_the_examples_is_told(catalog):
    told = {one.id for one in rules_of(catalog, catalog.rules.quotas, WEDNESDAY)}
    assert {"teams", "order", "backfill", "substitutes", "claims", "hours", "holds"} <= told
    assert catalog.rules.make_room is not None
