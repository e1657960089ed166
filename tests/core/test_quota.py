"""The hard quota: what counts, and what a refusal says."""

import pytest
from lease_builders import a_lease, a_request

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.queue.quota import check_quota, held_gpus

HERS = Key("hub", "alice born", "")


def test_all_live_leases_of_a_user_count_waiting_or_holding():
    live = [a_lease(phase.value, phase, request=a_request(count=2)) for phase in Phase if phase is not Phase.ENDED]
    ended = a_lease("over", Phase.ENDED, request=a_request(count=8))
    others = a_lease("bob's", user="bob", request=a_request("bob", count=8))
    assert held_gpus([*live, ended, others], HERS) == 2 * len(live)
    assert held_gpus([*live, ended, others], live[0].key) == 2 * len(live) - 2


@pytest.mark.parametrize(
    ("held", "asked", "quota", "message"),
    [
        (2, 2, 4, None),
        (0, 5, None, None),
        (8, 0, 4, None),
        (2, 4, 4, "GPUs: 4 asked; allowed: 4 per user, of which you use or wait for 2. Ask for 2, or"),
        (4, 1, 4, "GPUs: 1 asked; allowed: 4 per user, of which you use or wait for 4. Stop another of your"),
        (6, 1, 4, "GPUs: 1 asked; allowed: 4 per user, of which you use or wait for 6. Stop another of your"),
        (0, 1, 0, "GPUs: 1 asked; allowed: 0 per user, of which you use or wait for 0."),
    ],
)
def test_a_hard_quota_refuses_with_both_quantities_and_the_next_step(held, asked, quota, message):
    mine = [a_lease("mine", Phase.RUNNING, request=a_request(count=held))]
    request = a_request(gpu="a100" if asked else None, count=asked)
    if message is None:
        check_quota(request, HERS, mine, quota)
        return
    with pytest.raises(RequestRefused) as refused:
        check_quota(request, HERS, mine, quota)
    assert str(refused.value).startswith(message)
    assert "administrator" in refused.value.remedy
    assert refused.value.status == 403


def test_what_is_changed_does_not_count_against_itself():
    mine = a_lease("mine", Phase.QUEUED, request=a_request(count=3))
    check_quota(a_request(count=4), mine.key, [mine], 4)


def test_a_quota_is_a_user_s_whatever_the_name():
    renamed = a_lease("mine", Phase.RUNNING, user="alicia", key=Key("hub", "alice born", "mine"))
    earlier = a_lease("earlier", Phase.RUNNING, key=Key("hub", "an earlier alice born", ""))
    elsewhere = a_lease("elsewhere", Phase.RUNNING, key=Key("another hub", "alice born", ""))
    assert held_gpus([renamed, earlier, elsewhere], HERS) == 1
