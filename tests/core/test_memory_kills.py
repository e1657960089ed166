"""Programs that were killed because memory ran out: each is counted once and told at most once an hour."""

from dataclasses import replace

import pytest
from lease_builders import a_lease

from gpuspawner.core.events import KilledForMemory
from gpuspawner.core.leases.transitions import KILL_SHOWN_SECONDS, count_kills, has_recent_memory_kill

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("known", "count", "new"), [(0, 0, 0), (0, 1, 1), (1, 1, 0), (1, 3, 2), (3, 0, 0), (3, 1, 1), (2, None, 0)]
)
def test_each_memory_kill_is_counted_once_also_after_a_container_restart(known, count, new):
    lease, event = count_kills(replace(a_lease(), memory_kills=known), count, NOW)
    assert lease.memory_kills == (known if count is None else count)
    assert event == (KilledForMemory(new, lease.request.memory_bytes) if new else None)
    assert has_recent_memory_kill(lease, NOW) is bool(new)


def test_kills_one_after_the_other_are_one_message_and_the_page_says_so_for_an_hour_after_the_last():
    lease, event = count_kills(a_lease(), 1, NOW)
    assert event is not None
    lease, event = count_kills(lease, 2, NOW + KILL_SHOWN_SECONDS - 1)
    assert event is None
    assert has_recent_memory_kill(lease, NOW + KILL_SHOWN_SECONDS + 1)
    assert not has_recent_memory_kill(lease, NOW + 2 * KILL_SHOWN_SECONDS)
    assert count_kills(lease, 3, NOW + 2 * KILL_SHOWN_SECONDS)[1] is not None


@pytest.mark.parametrize(("count", "words"), [(1, "1 program killed"), (4, "4 programs killed")])
def test_its_words_name_the_memory_that_was_used_up(count, words):
    assert KilledForMemory(count, 16 * 2**30).describe(0.0) == f"{words}: the workspace had used all of its 16 GiB"
