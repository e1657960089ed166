"""Quotas: their usage, refusals, waiting requests and soft shares, with their sentences."""

from dataclasses import replace
from fractions import Fraction
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_builders import GIB, KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.index import QuotaUsageCache
from gpuspawner.core.queue.snapshot import Claim, Snapshot, claim_of
from gpuspawner.core.quotas.limits import Requester, limit_line
from gpuspawner.core.quotas.usage import QuotaTally, check_quotas, quota_usage_of
from gpuspawner.core.rules import Account, Limit, LimitedResource, Quota, QuotaGrant, QuotaScope, Rules
from gpuspawner.core.units import show_time

ids = count()


def quota(whom, subject="", what=LimitedResource.GPUS, kind="", soft=None, hard=None, name="", **more):
    limit = Limit(what, kind, *(None if x is None else Fraction(x) for x in (soft, hard)))
    return Quota(name or f"{whom.name} {subject}".strip(), whom, subject, (limit,), **more)


def asks(user="alice", team="", gpu="a100", number=1, **changes):
    return Claim(f"new {next(ids)}", f"{user} born", a_request(user, gpu, number, team=team, **changes), NOW, user=user)


def has(user="alice", team="", gpu="a100", number=1, phase=Phase.RUNNING, **changes):
    request = a_request(user, gpu, number, team=team, **changes)
    key = Key("hub", f"{user} born", f"server {next(ids)}")
    return a_lease(f"lease {next(ids)}", phase, user=user, request=request, key=key, deadline_at=NOW + 3600)


def seen_by(leases, *quotas, grants=(), contact=""):
    rules = Rules(quotas=quotas, contact=contact)
    return Snapshot(NOW, KINDS, tuple(leases), fleet(gpu(0)), rules=rules, quota_grants=tuple(grants))


def refused(claim, leases, *quotas, **more):
    refusal = None
    try:
        check_quotas(claim, seen_by(leases, *quotas, **more))
    except RequestRefused as error:
        refusal = error
    assert refusal is None or refusal.status == 403
    return str(refusal or "")


EACH4 = quota(QuotaScope.EACH_USER, hard=4)
TEAM4 = quota(QuotaScope.TEAM, "vision", hard=4)


@pytest.mark.parametrize(
    ("held", "asked", "hard", "message"),
    [
        (2, 2, 4, ""),
        (0, 5, None, ""),
        (8, 0, 4, ""),
        (2, 4, 4, "GPUs: You asked for 4. Allowed: 4 per user. You use or wait for 2. Ask for 2, or ask"),
        (4, 1, 4, "GPUs: You asked for 1. Allowed: 4 per user. You use or wait for 4. Stop another of your"),
        (6, 1, 4, "GPUs: You asked for 1. Allowed: 4 per user. You use or wait for 6. Stop another of your"),
        (0, 1, 0, "GPUs: You asked for 1. Allowed: 0 per user. You use or wait for 0. Ask for less"),
    ],
)
def test_a_hard_quota_refuses_with_both_quantities_and_the_next_step(held, asked, hard, message):
    claim = asks(gpu="a100" if asked else None, number=asked)
    told = refused(claim, [has(number=held)] if held else [], quota(QuotaScope.EACH_USER, hard=hard))
    assert told.startswith(message)
    assert bool(told) is bool(message)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.ENDED])
def test_a_user_limit_counts_held_and_waiting_gpus(phase):
    assert refused(asks(), [has(number=4, phase=phase)], EACH4)
    assert not refused(asks(), [has("bob", number=4, phase=phase)], EACH4)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.ENDED])
def test_a_team_limit_counts_held_gpus(phase):
    leases = [has(team="vision", number=4, phase=phase)]
    assert bool(refused(asks(team="vision"), leases, TEAM4)) is (phase not in {Phase.QUEUED, Phase.PARKED})


def test_a_changed_lease_does_not_count_against_itself():
    mine = has(number=3, phase=Phase.QUEUED)
    claim = replace(mine, request=a_request(count=4))
    check_quotas(claim_of(claim), seen_by([mine], EACH4))


def test_a_quota_is_a_users_whatever_the_name():
    renamed = replace(has(number=4), user="alicia")
    earlier = replace(has(number=4), key=Key("hub", "an earlier alice born", "x"))
    assert refused(asks(), [renamed], EACH4)
    assert not refused(asks(), [earlier], EACH4)


def test_the_most_specific_user_entry_applies_and_all_other_entries_too():
    of_team, of_alice = quota(QuotaScope.EACH_OF_TEAM, "vision", hard=6), quota(QuotaScope.USER, "alice", hard=1)
    everybody = quota(QuotaScope.EVERYBODY, hard=5)
    held = [has("bob", "vision", number=4)]
    assert not refused(asks("bob"), held, EACH4, of_team), "what a more specific entry binds counts there alone"
    assert refused(asks("bob", number=5), held, EACH4, of_team), "each user's"
    assert not refused(asks("bob", "vision"), held, EACH4, of_team), "each of the team's"
    assert refused(asks("bob", "vision", number=2), held, EACH4, of_team, everybody), "everybody's too"
    assert refused(asks(number=2), [], EACH4, of_alice), "one user's"
    assert not refused(asks("bob", number=2), [], EACH4, of_alice)
    assert refused(asks("bob", "vision"), held, of_team, TEAM4), "the team's too"
    assert not refused(asks("bob", "speech"), held, of_team, TEAM4)


@pytest.mark.parametrize(
    ("what", "kind", "hard", "mine", "asked", "words"),
    [
        (
            LimitedResource.KIND,
            "a100",
            2,
            has(number=2),
            asks(),
            "GPUs: You asked for 1 A100 80 GB. Allowed: 2 A100 80 GB per user",
        ),
        (LimitedResource.KIND, "t4", 2, has(number=2), asks(), ""),
        (LimitedResource.KIND, "half", 1, has(number=1), asks(gpu="half"), ""),
        (LimitedResource.GPUS, "", 1, has(gpu="half"), asks(gpu="half", number=2), "Ask for 1, or"),
        (LimitedResource.GPUS, "", 1, has(gpu="half"), asks(gpu="half"), ""),
        (
            LimitedResource.WORKSPACES,
            "",
            1,
            has(gpu=None, number=0),
            asks(),
            "workspaces: You asked for 1 workspace. Allowed: 1 work",
        ),
        (
            LimitedResource.CPU,
            "",
            3,
            has(),
            asks(),
            "CPU cores: You asked for 2 CPU. Allowed: 3 CPU per user. You use or wait for 2.",
        ),
        (LimitedResource.MEMORY, "", 3 * GIB, has(), asks(memory_bytes=4 * GIB), "Ask for 2 GiB memory, or"),
    ],
)
def test_each_thing_is_counted_as_it_is_called(what, kind, hard, mine, asked, words):
    told = refused(asked, [mine], quota(QuotaScope.EACH_USER, what=what, kind=kind, hard=hard))
    assert words in told
    assert bool(told) is bool(words)


def test_a_quota_filled_by_teammates_is_waited_for_or_refused_as_configured():
    held = [has("bob", "vision", number=3)]
    claim = asks(team="vision", number=2)
    assert not refused(claim, held, TEAM4)
    told = refused(claim, held, replace(TEAM4, full_waits=False), contact="gpu-team@example.org")
    assert told == (
        "GPUs: You asked for 2. Allowed: 4 for team vision. 3 are in use. "
        f"Ask for 1, or start when a colleague stops (next end {show_time(NOW + 3600, NOW)}). "
        "Raising it: gpu-team@example.org."
    )
    alone = refused(asks("bob", "vision", number=2), held, TEAM4)
    assert "Ask for 1" in alone, "no other user could release GPUs"


def test_a_request_that_waits_for_a_quota_reads_both_quantities_and_the_next_step():
    held = [has("bob", "vision", number=3)]
    bar = QuotaTally(seen_by(held, TEAM4, contact="gpu-team@example.org")).find_block(
        asks(team="vision", number=2), KINDS["a100"]
    )
    assert bar.words.startswith(
        "You asked for 2 GPUs. Team vision has 3 of 4 in use. Ask for 1, or wait until a colleague"
    )
    assert bar.words.endswith("Raising it: gpu-team@example.org.")
    assert (bar.rule, bar.clears_at) == ("quota TEAM vision", NOW + 3600)


def grant(account, amount=2, since=NOW, until=NOW + 1, what=LimitedResource.GPUS, kind=""):
    return QuotaGrant("g", account, what, Fraction(amount), since, until, kind)


@pytest.mark.parametrize(
    ("given_to", "raises"),
    [
        (grant(Account("", "alice born")), True),
        (grant(Account("", "bob born")), False),
        (grant(Account("", "alice born"), since=NOW + 1, until=NOW + 2), False),
        (grant(Account("", "alice born"), since=NOW - 2, until=NOW), False),
        (grant(Account("", "alice born"), what=LimitedResource.WORKSPACES), False),
        (grant(Account("vision", "")), False),
    ],
)
def test_a_quota_grant_raises_its_users_limits_until_it_expires(given_to, raises):
    assert bool(refused(asks(number=5), [], EACH4, grants=[given_to])) is not raises


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (quota(QuotaScope.EACH_USER, hard=4), "2 of 4 GPUs used, 1 waiting"),
        (quota(QuotaScope.EACH_USER, soft=2, hard=4), "2 of 4 GPUs used, share 2, 1 waiting"),
        (quota(QuotaScope.EACH_USER, soft=4, hard=4), "2 of 4 GPUs used, 1 waiting"),
        (quota(QuotaScope.EACH_USER, soft=2), "2 GPUs used, share 2, 1 waiting"),
        (quota(QuotaScope.EACH_USER), ""),
        (quota(QuotaScope.EACH_OF_TEAM, "vision", hard=4), "2 of 4 GPUs used for team vision"),
        (quota(QuotaScope.TEAM, "vision", hard=16), "team vision: 5 of 16 GPUs used"),
        (quota(QuotaScope.EVERYBODY, soft=8, hard=9), "all together: 5 of 9 GPUs used, share 8"),
        (
            quota(QuotaScope.EACH_USER, what=LimitedResource.MEMORY, hard=64 * GIB),
            "2 GiB of 64 GiB memory used, 1 GiB waiting",
        ),
        (quota(QuotaScope.TEAM, "speech", hard=1), None),
    ],
)
def test_a_line_says_what_is_used_of_a_limit_and_what_may_be(bound, words):
    leases = [
        has(team="vision", number=2),
        has(phase=Phase.PARKED),
        has(gpu=None, number=0),
        has("bob", "vision", number=3),
        has("bob", "vision", phase=Phase.QUEUED),
    ]
    lines = QuotaTally(seen_by(leases, bound)).uses(Requester("alice", "alice born", "vision"))
    assert [limit_line(*one, KINDS) for one in lines] == ([] if words is None else [words])


def test_soft_limits_are_a_share_that_is_told_and_passed():
    soft = quota(QuotaScope.EACH_USER, soft=2)
    third, tally = asks(), QuotaTally(seen_by([has(number=2)], soft))
    assert not refused(third, [has(number=2)], soft)
    assert tally.share_words(third, KINDS["a100"]) == "This is your 3rd GPU. Your share is 2."
    assert not tally.is_guaranteed(third, KINDS["a100"])
    assert tally.share_words(asks("bob", number=2), KINDS["a100"]) == ""
    assert tally.is_guaranteed(asks("bob", number=2), KINDS["a100"])
    assert "With this you would have 3 GPUs. Your share is 2." in tally.share_words(asks("b", number=3), KINDS["a100"])
    team = quota(QuotaScope.TEAM, "vision", soft=2)
    words = QuotaTally(seen_by([has("b", "vision", number=2)], team)).share_words(asks(team="vision"), KINDS["a100"])
    assert words == "With this team vision would have 3 GPUs. The share is 2."
    assert not QuotaTally(seen_by([])).is_guaranteed(asks(), KINDS["a100"]), (
        "without a soft limit nothing is guaranteed"
    )


def test_a_request_held_back_by_a_quota_blocks_no_gpus_and_is_not_passed_in_it():
    held = [has("bob", "vision", number=3)]
    large = has("alice", "vision", number=2, phase=Phase.QUEUED)
    small = replace(has("carl", "vision", phase=Phase.QUEUED, lifetime_seconds=7200), asked_at=NOW + 1)
    other = replace(has("dora", "speech", phase=Phase.QUEUED), asked_at=NOW + 2)
    short = replace(has("erna", "vision", phase=Phase.QUEUED, lifetime_seconds=600), asked_at=NOW + 3)
    seen = seen_by([*held, large, small, other, short], TEAM4)
    decision = decide(replace(seen, fleet=fleet(*(gpu(i) for i in range(4)))))
    ends = {one.claim.id: one.latest_end and one.latest_end.at for one in decision.grants}
    assert ends == {other.id: None, short.id: NOW + 3600}, "what ends before the quota frees enough passes"
    assert decision.wait_reasons[large.id].words.startswith("You asked for 2 GPUs. Team vision has 3 of 4 in use.")
    assert "A request ahead of yours waits" in decision.wait_reasons[small.id].words
    assert set(decision.wait_reasons) == {large.id, small.id}


def test_a_template_without_a_gpu_waits_for_cpu_too():
    cpu = quota(QuotaScope.EVERYBODY, what=LimitedResource.CPU, hard=3)
    waiting = has(gpu=None, phase=Phase.QUEUED)
    decision = decide(seen_by([has("bob", gpu=None), waiting], cpu))
    assert (decision.grants, decision.wait_reasons[waiting.id].rule) == ((), "quota EVERYBODY")


LIMITS = st.builds(
    quota,
    st.sampled_from([QuotaScope.EACH_USER, QuotaScope.EVERYBODY]),
    what=st.sampled_from([LimitedResource.GPUS, LimitedResource.WORKSPACES, LimitedResource.CPU]),
    hard=st.integers(0, 6),
    name=st.sampled_from("pqr"),
)
TEAM_LIMITS = st.builds(
    quota,
    st.sampled_from([QuotaScope.TEAM, QuotaScope.EACH_OF_TEAM]),
    st.sampled_from(["vision", "speech"]),
    hard=st.integers(0, 5),
)


def counted(holdings):
    """The usage of each limit: the total, by lease and by user."""
    both = [(which, *one) for which in ("held", "waiting") for one in getattr(holdings, which).items()]
    return {(which, limit_key): (x.total, {**x.of}, {**x.of_user}) for which, limit_key, x in both if x.of}


@given(st.data())
def test_no_request_is_granted_over_a_hard_limit_under_any_interleaving(data):
    """People ask, are granted, leave, and quotas change: after each pass no limit is passed by what it granted."""
    leases, now, kept = [], NOW, QuotaUsageCache()
    gpus = fleet(*(gpu(i, node=f"node-{i // 4}") for i in range(12)))
    for _ in range(data.draw(st.integers(1, 6))):
        quotas = tuple(data.draw(st.lists(st.one_of(LIMITS, TEAM_LIMITS), max_size=4, unique_by=lambda x: x.name)))
        for _ in range(data.draw(st.integers(0, 4))):
            who, team = (
                data.draw(st.sampled_from(["alice", "bob"])),
                data.draw(st.sampled_from(["", "vision", "speech"])),
            )
            kind, number = data.draw(st.sampled_from([("a100", 1), ("a100", 2), ("half", 1), (None, 0)]))
            leases.append(replace(has(who, team, kind, number, Phase.QUEUED), asked_at=now))
        seen = Snapshot(now, KINDS, tuple(leases), gpus, rules=Rules(quotas=quotas))
        before = QuotaTally(seen)
        assert counted(kept.of(seen)) == counted(quota_usage_of(seen)), "the kept usage equals a new count"
        granted = {one.claim.id: one for one in decide(seen).grants}
        leases = [
            replace(x, phase=Phase.RUNNING, slots=granted[x.id].slots, running_at=now, deadline_at=now + 3600)
            if x.id in granted
            else x
            for x in leases
        ]
        after = QuotaTally(replace(seen, leases=tuple(leases)))
        for one in granted.values():
            for bound, asked in before.takes(one.claim, KINDS.get(one.kind or "")):
                assert after.leaves(bound, Fraction(0)), (bound, asked)
        leases = [x for x in leases if x.phase is Phase.QUEUED or data.draw(st.booleans())]
        now += data.draw(st.sampled_from([0.0, 600.0]))


def test_a_lease_holds_what_it_was_given():
    given_half = replace(has(number=2), given="half", slots=slots("a100-0", share="1/2"))
    assert not refused(asks(number=3), [given_half], EACH4)
    assert refused(asks(number=4), [given_half], EACH4)


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.RUNNING])
def test_the_stored_and_the_changed_lease_are_independent(phase):
    mine, kept = has(phase=phase), QuotaUsageCache()
    seen = seen_by([mine], EACH4)
    as_it_is = claim_of(mine)
    changed = as_it_is._replace(request=replace(mine.request, count=5))
    for _ in range(2):
        with pytest.raises(RequestRefused):
            check_quotas(changed, seen, kept.of(seen))
        check_quotas(as_it_is, seen, kept.of(seen))


def test_a_viewer_of_larger_requests_is_granted_the_original_one():
    mine, kept = has(phase=Phase.PARKED), QuotaUsageCache()
    seen = seen_by([mine], EACH4)
    more = claim_of(mine)._replace(request=replace(mine.request, count=5))
    with pytest.raises(RequestRefused):
        check_quotas(more, seen, kept.of(seen))
    assert QuotaTally(seen, kept.of(seen)).find_block(claim_of(mine), KINDS["a100"]) is None
