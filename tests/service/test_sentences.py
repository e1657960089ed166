"""The sentences that people read: those of product.md that are built, by number, and their parts."""

import time
from dataclasses import replace
from fractions import Fraction
from math import inf

import pytest
from lease_builders import KINDS, NOW, a_lease, a_request, slots
from service_world import a_catalog

from gpuspawner.catalog.requests.visibility import gpus_asked
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.fleet import Autoscale
from gpuspawner.core.idle.policies import ActivityPolicy, IdlePolicy, KeepPolicy, LifecyclePolicy, Mode
from gpuspawner.core.idle.verdicts import SampleKind, Streak, explain
from gpuspawner.core.leases.exits import EXIT_KINDS, ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.running_steps import measured
from gpuspawner.core.outages import HUB, Outage
from gpuspawner.core.queue.calibration import Form, ShownStart
from gpuspawner.core.queue.decisions import ReservedForOthers
from gpuspawner.core.queue.estimates import QueuePosition
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.usage import check_quotas
from gpuspawner.core.rules import Limit, LimitedResource, Quota, QuotaScope, Rules
from gpuspawner.core.units import ordinal, show_time
from gpuspawner.schedulers.base import Offer
from gpuspawner.service.start.check import starts_now, stops_when_idle
from gpuspawner.service.waiting.presenter import queue_sentence, start_words
from gpuspawner.service.waiting.reasons import kept_free_words
from gpuspawner.service.workspaces.idleness import idle_words
from gpuspawner.service.workspaces.models import Unreadable
from gpuspawner.service.workspaces.presenter import phase_words, present_workspace

CATALOG = a_catalog()
NOON = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))
SHORT = IdlePolicy(for_seconds=30.0)
IN_USE = "All 4 A100 80 GB are in use."
TOO_FEW = "Too few past workspaces are known to estimate the start."
UNKNOWN = "We do not know yet how long it takes."


def test_before_a_request_the_sentence_is_conditional():
    words = queue_sentence(QueuePosition(1, 1, None, None), a_request(), CATALOG, offer(), asked_for=False)
    assert words == ("All 4 A100 80 GB are in use. You would be 1st in line. We do not know yet how long it takes.")


def test_administrators_read_about_the_request_in_the_third_person():
    words = queue_sentence(QueuePosition(1, 1, None, None), a_request(count=2), CATALOG, offer(free=1), is_own=False)
    assert words.startswith("1 of 4 A100 80 GB are free, and it needs 2. It is 1st in line. ")


def test_the_sentence_names_a_quota_of_the_cluster():
    short = "The cluster's quota team leaves 1 GiB memory of 64 GiB memory, and this needs 8 GiB memory."
    words = queue_sentence(QueuePosition(2, 3, None, None), a_request(), CATALOG, offer(free=3), short)
    assert words == (f"{short} You are 2nd in line. It starts by itself as soon as it can.")


def test_the_sentence_says_that_a_node_starts_first():
    words = starts_now(a_request(), CATALOG, offer(free=0), NOON, node_seconds=240.0)
    assert words == (
        "None is free now. Starts by itself on 1 A100 80 GB: a node starts for it, in about 4 min. Ends 1 h after that."
    )


def offer(free=0, total=4, kind="a100", *, simulated=False, away=0):
    return Offer(kind, free, total, total, 2, simulated=simulated, away=away)


@pytest.mark.parametrize(
    ("offered", "autoscale", "begin"),
    [
        pytest.param(offer(total=1), None, "The only A100 80 GB is in use", id="one"),
        pytest.param(offer(away=4), None, "All 4 A100 80 GB are out of service", id="its node is closed"),
        pytest.param(offer(total=1, away=1), None, "The only A100 80 GB is out of service", id="the only one"),
        pytest.param(offer(away=1), None, "All 4 A100 80 GB are in use or out of service", id="one is broken"),
        pytest.param(offer(free=1), None, "1 of 4 A100 80 GB are free", id="not enough"),
        pytest.param(offer(free=1, away=1), None, "1 of 4 A100 80 GB are free, 1 out of service", id="never enough"),
        pytest.param(offer(total=0), None, "No A100 80 GB is there now", id="its nodes are gone"),
        pytest.param(
            offer(total=0),
            Autoscale(1, 1, 240.0),
            "No A100 80 GB is there now, and all that may come are taken",
            id="none runs, and all that come are promised",
        ),
    ],
)
def test_unused_gpus_are_not_reported_as_in_use(offered, autoscale, begin):
    kinds = {**CATALOG.gpus, "a100": replace(CATALOG.gpus["a100"], autoscale=autoscale)}
    words = queue_sentence(QueuePosition(1, 1, None, None), a_request(), replace(CATALOG, gpus=kinds), offered)
    assert words.startswith(f"{begin}. You are 1st in line. ")


@pytest.mark.parametrize(
    ("request_", "offered", "sentence"),
    [
        (
            a_request(lifetime_seconds=23400),
            offer(free=3),
            "on 1 A100 80 GB (3 free). Ends at 18:30, after 6 h 30 min.",
        ),
        (
            a_request(gpu="half", count=2, lifetime_seconds=43200),
            offer(free=5),
            "on 2 Half an A100 (5 free). Ends at Sun 22 Nov 00:00, after 12 h.",
        ),
        (
            a_request(count=2),
            offer(free=3, simulated=True),
            "on 2 simulated A100 80 GB (3 free). Ends at 13:00, after 1 h.",
        ),
        (a_request(gpu=None), None, "without a GPU. Ends at 13:00, after 1 h."),
        (a_request(), offer(free=None), "on 1 A100 80 GB. Ends at 13:00, after 1 h."),
    ],
)
def test_sentence_1_what_starts_now(request_, offered, sentence):
    assert starts_now(request_, CATALOG, offered, NOON) == f"Starts now {sentence}"


ENFORCED = LifecyclePolicy(mode=Mode.ENFORCE)
WARNED = "you get a warning. It stops 10 min later"
YOUNG = " The first 1 min after its start does not count."


@pytest.mark.parametrize(
    ("request_", "changes", "sentence"),
    [
        (a_request(), {}, f"If its GPU is idle for 30 min, {WARNED} unless you keep it."),
        (a_request(count=2), {"keep": KeepPolicy(times=0)}, f"If all 2 GPUs are idle for 30 min, {WARNED}."),
        (
            a_request(gpu=None, lifetime_seconds=8 * 3600),
            {"activity": ActivityPolicy()},
            f"If nothing runs in it for 2 h, {WARNED} unless you keep it.",
        ),
        (a_request(gpu=None), {}, ""),
        (a_request(lifetime_seconds=2401), {}, f"If its GPU is idle for 30 min, {WARNED} unless you keep it."),
        (a_request(), {"idle": SHORT}, f"If its GPU is idle for 30 s, {WARNED} unless you keep it.{YOUNG}"),
        (
            a_request(),
            {"idle": replace(SHORT, start_up_seconds=0.0)},
            f"If its GPU is idle for 30 s, {WARNED} unless you keep it.",
        ),
        (a_request(lifetime_seconds=2400), {}, ""),
        (a_request(lifetime_seconds=60), {}, ""),
        (a_request(), {"mode": Mode.WARN}, ""),
        (a_request(), {"mode": Mode.OBSERVE}, ""),
    ],
)
def test_the_form_says_when_idleness_ends_a_workspace(request_, changes, sentence):
    assert stops_when_idle(request_, replace(ENFORCED, **changes)) == sentence


@pytest.mark.parametrize(
    ("request_", "place", "offered", "sentence"),
    [
        (a_request(), (2, 2, 1500.0, 1500.0), offer(), f"{IN_USE} You are 2nd in line. {TOO_FEW}"),
        (
            a_request(count=4),
            (1, 1, 2400.0, 1200.0),
            offer(free=2),
            f"2 of 4 A100 80 GB are free, and you need 4. You are 1st in line. {TOO_FEW}",
        ),
        (
            a_request(),
            (1, 1, None, None),
            offer(simulated=True),
            f"All 4 simulated A100 80 GB are in use. You are 1st in line. {UNKNOWN}",
        ),
        (a_request(), (11, 12, None, None), offer(), f"{IN_USE} You are 11th in line. {UNKNOWN}"),
        (
            a_request(),
            (1, 1, None, None),
            offer(free=None, total=None),
            "The A100 80 GB can't be counted at this moment. You are 1st in line.",
        ),
        (
            a_request(gpu="gone"),
            (1, 1, None, None),
            None,
            "The gone can't be counted at this moment. You are 1st in line.",
        ),
        (
            a_request(gpu=None),
            (3, 3, 0.0, 0.0),
            None,
            "Many workspaces start at this moment. You are 3rd in line. It starts by itself.",
        ),
    ],
)
def test_sentence_2_a_place_in_the_queue(request_, place, offered, sentence):
    assert queue_sentence(QueuePosition(*place), request_, CATALOG, offered) == sentence


def test_sentence_4_a_hard_quota():
    rules = Rules(
        quotas=(Quota("each", QuotaScope.EACH_USER, limits=(Limit(LimitedResource.GPUS, hard=Fraction(4)),)),)
    )
    held = a_lease("held", Phase.RUNNING, request=a_request(count=2))
    seen = Snapshot(NOW, KINDS, (held,), rules=rules)
    with pytest.raises(RequestRefused) as refused:
        check_quotas(Claim("new", "alice born", a_request(count=4), NOW), seen)
    assert str(refused.value) == (
        "GPUs: You asked for 4. Allowed: 4 per user. You use or wait for 2. "
        "Ask for 2, or ask an administrator to raise the quota."
    )


@pytest.mark.parametrize(
    ("gpus", "streak", "sentence"),
    [
        (1, Streak(1800.0, peak_percent=1.0), "The GPU has been idle for 30 min. Its highest use was 1 %."),
        (2, Streak(1799.6, peak_percent=None), "Both GPUs have been idle for 30 min."),
        (3, Streak(5400.0, peak_percent=2.5), "All 3 GPUs have been idle for 1 h 30 min. Their highest use was 2.5 %."),
        (
            1,
            Streak(1800.0, peak_percent=100.0),
            (
                "The GPU has been idle for 30 min. Its highest use was 100 %, but no process held a GPU. "
                "Reading a GPU can wake it."
            ),
        ),
    ],
)
def test_sentence_6_what_was_measured(gpus, streak, sentence):
    lease = a_lease(phase=Phase.RUNNING, held=slots(*"abc"[:gpus]), streak=streak)
    assert measured(lease, IdlePolicy()).describe(NOW) == sentence


def test_sentence_6_the_warning_says_when_it_ends_and_what_is_lost(world):
    now = world.clock.now()
    streak = Streak(300.0, peak_percent=1.0, countdown_seconds=120.0, mode=Mode.ENFORCE, kind=SampleKind.IDLE)
    warned = a_lease(phase=Phase.RECLAIMING, held=slots("a"), streak=streak, sampled_at=now - 30)
    warning = present_workspace(world.parts, warned).warning
    assert warning.ends_at == now + 90
    assert warning.text == (
        "The GPU has been idle for 5 min. Its highest use was 1 %. This workspace stops at "
        f"{show_time(now + 90, now)}, in 1 min 30 s. "
        "You lose running kernels and what they hold on the GPU. Your files stay."
    )
    assert present_workspace(world.parts, replace(warned, keeps_used=2)).warning.actions == ["without-gpu"]


@pytest.mark.parametrize(
    ("streak", "words"),
    [
        (Streak(), "not measured yet"),
        (Streak(kind=SampleKind.BUSY, because="GPU 0 at 80 %"), "in use: GPU 0 at 80 %"),
        (Streak(120.0, kind=SampleKind.IDLE, because="GPU 0 at 1 %"), "idle for 2 min of 5 min: GPU 0 at 1 %"),
        (
            Streak(120.0, kind=SampleKind.UNKNOWN, because="GPU 0 can't be read (x)"),
            "idle for 2 min of 5 min, paused now: GPU 0 can't be read (x)",
        ),
        (Streak(kind=SampleKind.SOFT, because="CPU at 2 cores"), "in use: CPU at 2 cores"),
        (Streak(kind=SampleKind.UNKNOWN, because="x"), "not measured now: x"),
        (
            Streak(kind=SampleKind.IDLE, idle_seconds=320.0, countdown_seconds=40.0, mode=Mode.WARN, because="x"),
            "idle for 5 min 20 s: x",
        ),
    ],
)
def test_sentence_6_where_idleness_stands_and_why(streak, words):
    assert idle_words(explain(streak, CATALOG.policies["default"].idle)) == words


def test_sentence_6_in_grace_the_end_time_replaces_the_required_work():
    streak = Streak(320.0, countdown_seconds=60.0, mode=Mode.ENFORCE, kind=SampleKind.IDLE, because="GPU 0 at 1 %")
    seen = explain(streak, CATALOG.policies["default"].idle)
    assert idle_words(seen, "14:42") == "idle for 5 min 20 s, stops at 14:42: GPU 0 at 1 %"


@pytest.mark.parametrize(("seconds", "told"), [(7199.0, []), (7200.0, [Unreadable(gpu="a", seconds=7200.0)])])
def test_sentence_8_a_gpu_unreadable_for_two_hours_is_named(world, seconds, told):
    streak = Streak(kind=SampleKind.UNKNOWN, because="GPU 0 can't be read ([N/A])", unknown_since=(("a", seconds),))
    idle = present_workspace(world.parts, a_lease(phase=Phase.RUNNING, held=slots("a"), streak=streak)).idle
    assert idle.unreadable == told
    assert idle.words == "not measured now: GPU 0 can't be read ([N/A])"


@pytest.mark.parametrize(
    ("seconds", "shown", "words"),
    [
        (None, None, "We do not know yet how long it takes."),
        (90.0, None, "Too few past workspaces are known to estimate the start."),
        (90.0, ShownStart(Form.TIME, 90.0, 60.0, 300.0), "It probably starts in about 1 min 30 s."),
        (90.0, ShownStart(Form.HOUR, None, 60.0, 300.0), "It probably starts within the hour."),
        (90.0, ShownStart(Form.RANGE, None, 600.0, 10000.0), "It probably starts in 10 min to 2 h 50 min."),
        (90.0, ShownStart(Form.LONG, None, 600.0, inf), "It may take more than 3 hours."),
    ],
)
def test_an_estimate_is_as_precise_as_it_is_known(seconds, shown, words):
    assert start_words(QueuePosition(1, 1, seconds, seconds), shown) == words


def test_before_the_request_the_page_says_when_its_start_is_estimated():
    words = queue_sentence(QueuePosition(1, 1, 90.0, 90.0), a_request(), CATALOG, offer(), asked_for=False)
    assert words.endswith("Once you have requested it, we estimate its start.")


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (10, "10th"), (11, "11th"), (12, "12th"), (13, "13th"),
     (20, "20th"), (21, "21st"), (22, "22nd"), (33, "33rd"), (101, "101st"), (111, "111th"), (112, "112th")],
)  # fmt: skip
def test_ordinals(number, text):
    assert ordinal(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "12:00:00"), (599, "12:09:59"), (600, "12:10"), (43200, "Sun 22 Nov 00:00"), (-60, "11:59:00")],
)
def test_a_time_has_its_day_or_seconds_where_needed(seconds, text):
    assert show_time(NOON + seconds, NOON) == text


def test_every_phase_and_every_reason_has_words():
    words = {phase: phase_words(a_lease(phase=phase), CATALOG) for phase in Phase}
    assert len(set(words.values())) == len(Phase)
    assert words[Phase.RUNNING] == "Running on 1 A100 80 GB"
    without = a_request(gpu=None)
    for phase, told in {
        Phase.QUEUED: "Waiting to start without a GPU",
        Phase.PARKED: "Waiting to start without a GPU; it starts by itself",
        Phase.RESERVED: "Starting without a GPU",
        Phase.RUNNING: "Running without a GPU",
    }.items():
        assert phase_words(a_lease(phase=phase, request=without), CATALOG) == told
    assert set(EXIT_KINDS) == set(ExitReason)
    assert gpus_asked(a_request(gpu=None), CATALOG) == "no GPU"


async def test_a_parked_request_says_when_it_is_retried_or_that_the_hub_is_away(world):
    parked = a_lease(phase=Phase.PARKED, not_before=world.clock.now() + 60)
    await world.registry.save(parked)
    world.allocator.observed.hub_answers = True
    assert "We try again in 1 min" in present_workspace(world.parts, parked).queue.sentence
    waiting = replace(parked, not_before=0.0)
    world.allocator.observed.hub_outage = outage = Outage(HUB, world.clock.now() - 60)
    sentence = outage.waiting_words(world.clock.now())
    assert present_workspace(world.parts, waiting).queue.sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (
            ReservedForOthers(2, 4, NOON + 3600 + 180),
            "but reserved for 4 GPUs ahead of you. A workspace that ends before {} can start now. Shorten yours to 1 h",
        ),
        (
            ReservedForOthers(1, 1, NOON + 1200),
            "but reserved for 1 GPU ahead of you. A workspace that ends before {} can start now",
        ),
        (ReservedForOthers(2, 4, None), "but reserved for 4 GPUs ahead of you. We do not know when these start"),
        (None, ""),
    ],
)
def test_the_sentence_says_why_free_gpus_are_not_granted(kept, words):
    until = "" if kept is None or kept.until is None else show_time(kept.until, NOON)
    found = kept_free_words(kept, a_request(), CATALOG, NOON)
    assert found.replace(", but your template does not allow such a short run time", "") == words.format(until)
    sentence = queue_sentence(
        QueuePosition(2, 2, 2400.0, 1200.0), a_request(), CATALOG, offer(free=2), kept=found, then="A message comes."
    )
    assert sentence.startswith(f"2 of 4 A100 80 GB are free{', ' if words else ''}{found}. You are 2nd in line. ")
    assert sentence.endswith(" A message comes.")
