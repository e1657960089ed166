"""How long a rule held a waiting request back: that does not count as waited."""

import pytest
from lease_builders import NOW, a_lease

from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.transitions import clear_wait_reason, set_wait_reason


def test_the_time_of_each_rule_adds_up_and_a_clock_moved_back_removes_no_time():
    waits = a_lease()
    assert clear_wait_reason(waits, NOW) is waits
    first = set_wait_reason(waits, "a quota", "You have 4 of 4.", NOW + 10)
    second = set_wait_reason(first, "a budget", "It is used up.", NOW + 30)
    assert (second.wait_reason.rule, second.wait_reason.since, second.blocked_seconds) == ("a budget", NOW + 30, 20)
    assert clear_wait_reason(second, NOW + 35).blocked_seconds == 25
    assert clear_wait_reason(second, NOW).blocked_seconds == 20


def test_no_rule_holds_back_what_does_not_wait():
    with pytest.raises(Conflict, match="running"):
        set_wait_reason(a_lease(phase=Phase.RUNNING, held=("a100-0",)), "a quota", "", NOW)
