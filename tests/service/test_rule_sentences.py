"""The page on quotas: its examples are one catalog, and users read these sentences about its rules."""

import time
from dataclasses import replace
from fractions import Fraction
from zoneinfo import ZoneInfo

import page_world
import pytest
import yaml
from harness import pages
from page_world import api, waiting

from gpuspawner.catalog import load_catalog, load_text
from gpuspawner.catalog.visibility import choose_team
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core.calendar.windows import opening
from gpuspawner.core.errors import CatalogError, RequestRefused
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.backfill import bound_of
from gpuspawner.core.queue.holds import HeldGpus
from gpuspawner.core.queue.positions import Place
from gpuspawner.core.queue.ranges import Outcome, right_words
from gpuspawner.core.quotas.bounds import Who, bounds_of
from gpuspawner.core.quotas.budgets import Asker, Balances
from gpuspawner.core.quotas.budgets import refusal as budget_refusal
from gpuspawner.core.quotas.entries import account_of
from gpuspawner.core.quotas.quota_words import Use, held_back_words, line_words, refusal, share_words
from gpuspawner.core.rules import Accounts, Notice, Rate, Used
from gpuspawner.schedulers.base import Offer
from gpuspawner.service.preemption.words import notice_words, why_words
from gpuspawner.service.rules.preemptions import new_claim
from gpuspawner.service.tell.rules.place_changes import PlaceChanges
from gpuspawner.service.tell.rules.returning import BEFORE_LATER, BY_SHARE
from gpuspawner.service.tell.rules.rule_words import rules_of
from gpuspawner.service.tell.sentences import given_instead, gpus_asked, starts_now, waits

DOCUMENT = pages.page("explanation/quotas")
SENTENCES = (
    "Team: none asked; allowed: vision, speech. Say for which of them it is.",
    "Team Vision is charged for what its members use. In the queue its use is divided by 2.",
    "Each user may have 2 GPUs at once, and up to 4 while free.",
    "1 of 2 GPUs (up to 4 while free)",
    "0 of 2 GPUs (up to 4 while free), 3 waited for",
    "This is your 3rd GPU; your share is 2.",
    "GPUs: 3 asked; allowed: 4 per user, of which you use or wait for 2. Ask for 2. Raising it: gpu-help@example.org.",
    "4 GPUs asked; team vision has 30 of 32 in use. Ask for 2, or wait until a colleague stops (next end 16:10). Raising it: gpu-help@example.org.",
    "Each user of Speech, of what is charged to Speech, may have 20 GPU h a week as a share, at most 40 GPU h.",
    "Starts now on 1 A100 80 GB. Ends at 14:10, when your 40 GPU h of this week are used up.",
    "GPU hours: 1 GPU for 8 h asked; allowed: 0 GPU h of your 40 GPU h of this week are left (40 GPU h used, 0 GPU h set aside for what runs). They renew Mon 30 Nov 00:00. Stop what you do not need, or ask gpu-help@example.org for more.",
    "4 GPUs more for alice until Sat 28 Nov 00:00",
    "A higher priority goes first.",
    "Then who has waited longer than 12 h: beyond that nobody waits because others have used less.",
    "A workspace that ends for others, or moves, returns with them: before what was asked after it.",
    "Then what is within the share: what the soft quotas of the user and of the team leave.",
    "Beyond the share, the team that has used less goes first, then in it the user who has. A team's use is divided by its weight, and use counts half as much after a week.",
    "Then who asked first.",
    "A smaller request passes a larger one only if it ends before the larger one starts. Its end is then fixed: it can't be extended.",
    "Starts now on 1 A100 80 GB. Ends by 16:00, when another request, which goes first, gets its place.",
    "Under the policies default, night, holiday nobody extends while others wait for the same kind.",
    "All 4 A100 80 GB are in use. You are 2nd in line; about 20 min, 40 min if no workspace ends early, more if somebody extends or goes first. You can close this page; your place stays.",
    "All 4 A100 80 GB are in use. You are 2nd in line; about 20 min (15 min to 35 min, right 7 times in 10 so far). You can close this page; your place stays.",
    "Place 4 became 2 at 10:12: 2 before you had their turn.",
    "Another kind of GPU is given to those alone who ticked it, and never one with less than is needed.",
    "1 H100 80 GB instead of A100 80 GB, as you allowed: 4.00 instead of 2.10 an hour",
    "Under the policies default, night, holiday a workspace is safe from stronger claims in its first 30 min, and its user is told 15 min before it ends. It then returns to the queue.",
    "Training job train-77 needs 2 A100 80 GB. Your workspace ends at 14:50 (15 min). Save now. Running kernels are lost; files stay. It returns to the queue before later requests of its priority, and starts again by itself.",
    "A request within its share has waited for 2 A100 80 GB for long, and you use more than your share. Your workspace ends at 14:50 (15 min). Save now. Running kernels are lost; files stay. It returns to the queue, where its share decides its place, and starts again by itself.",
    "Who is over the soft share may have to make room for who is under it and has waited 30 min: told before, and back in the queue by their share.",
    "Mon to Fri 20:00-07:00 (Europe/Zurich) the policy night holds instead of default.",
    "Thu 24 Dec 2026, Thu 31 Dec 2026 (Europe/Zurich) the policy holiday holds instead of default: no workspace is made ready at a time.",
    "Fri 25 Dec 2026, Fri 1 Jan 2027: no workspace is made ready at a time.",
    "8 T4 16 GB are kept free for the group cs231, Thu 09:00-11:00 (Europe/Zurich), until Tue 02 Feb 00:00. What others start before ends in time for it.",
    "Starts now on 1 T4 16 GB. Ends at Thu 26 Nov 09:00, when 8 T4 16 GB are reserved for cs231.",
    "The catalog was changed and cannot be used: the one before stays in force. catalog.yaml:5: quotas.vision.gpus.soft: soft, 40, is more than hard, 32. Lower it, or raise hard.",
)
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
    """What the pages say of every rule."""
    return {one for rule in rules_of(catalog, catalog.rules.quotas, WEDNESDAY) for one in rule.sentences}


def of_teams(catalog):
    with pytest.raises(RequestRefused) as refused:
        choose_team(catalog.rules, {"vision", "speech"}, "", {})
    yield str(refused.value)


def of_quotas(catalog):
    rules, kinds, contact = catalog.rules, catalog.gpus, catalog.rules.contact
    (own, *_) = bounds_of(Who("alice", "alice born", ""), rules, (), WEDNESDAY)
    team = next(one for one in bounds_of(Who("alice", "alice born", "vision"), rules, (), WEDNESDAY) if one.of_all)
    yield line_words(own, Fraction(1), Fraction(0), kinds)
    yield line_words(own, Fraction(0), Fraction(3), kinds)
    yield share_words(own, Use(Fraction(1), Fraction(2)), kinds)
    yield str(refusal(own, Use(Fraction(3), Fraction(2)), 3, kinds, contact))
    at = WEDNESDAY + 6 * 3600 + 1200
    yield held_back_words(team, Use(Fraction(4), Fraction(0), Fraction(30), at, WEDNESDAY), 4, kinds, contact)


def of_budgets(catalog):
    rules, asker = catalog.rules, Asker("sam", "sam born", "speech")
    student = next(one for one in rules.quotas if one.name == "student")
    account, week = account_of(student, "sam born", "speech"), student.budgets[0]

    def verdict(used, gpus, hours):
        accounts = Accounts({(account, Used.GPU_HOURS, week.per): used})
        return Balances(WEDNESDAY, (), rules, accounts).verdict(asker, Rate(gpus), WEDNESDAY, hours * 3600)

    bound = verdict(40 - Fraction(13, 3), Fraction(1), 8).latest_end
    yield starts_now(request(), catalog, None, WEDNESDAY, latest_end=bound)
    limit, remedy = budget_refusal(verdict(Fraction(40), Fraction(1), 8), 0, rules.contact, WEDNESDAY)
    yield str(RequestRefused("gpu_hours", "1 GPU for 8 h", limit, remedy))


def of_the_queue(catalog):
    offer = Offer("a100", 0, 4, 0, 2, simulated=False)
    yield waits(Place(2, 3, 2400.0, 1200.0), request(), catalog, offer)
    told = (
        900.0,
        2100.0,
        right_words([Outcome(60, 90, 30, 120, 60 if number < 7 else 600) for number in range(10)] * 10),
    )
    yield waits(Place(2, 3, 2400.0, 1200.0), request(), catalog, offer, told=told)
    changes, (one, two, three, four) = PlaceChanges(), (waiting(name, count=1) for name in "abcd")
    changes.see(dict(zip("abcd", range(1, 5), strict=True)), (one, two, three, four), catalog.gpus, WEDNESDAY)
    granted = [replace(lease, phase=Phase.RESERVED) for lease in (one, two)]
    changes.see({"c": 1, "d": 2}, (*granted, three, four), catalog.gpus, WEDNESDAY + 22 * 60)
    yield changes.words("d", WEDNESDAY + 3600)
    passes = bound_of(WEDNESDAY + 6 * 3600 + 600, WEDNESDAY)
    yield starts_now(request(), catalog, None, WEDNESDAY, latest_end=passes)
    (hold,) = catalog.rules.holds
    when = opening(hold.window, WEDNESDAY, ZoneInfo(ZONE))
    held = HeldGpus(hold, when, (), catalog.gpus[hold.kind].title).bound(WEDNESDAY)
    yield starts_now(request(gpu="t4", lifetime_seconds=86400), catalog, None, WEDNESDAY, latest_end=held)


def of_gpus(catalog):
    yield gpus_asked(request(gpu="h100"), catalog) + given_instead(catalog, "a100", "h100")
    at = WEDNESDAY + 5 * 3600
    asked = {"kind": "a100", "count": 2, "key": "k"}
    for whom, returns in (({"external": "Training job train-77"}, BEFORE_LATER), ({"lease": "waits"}, BY_SHARE)):
        claim = new_claim("admin", WEDNESDAY, **asked, **whom)
        notice = Notice("claim", at, why_words(claim, catalog), "admin")
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
