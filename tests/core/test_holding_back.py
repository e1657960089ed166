"""How long a rule held a waiting request back: that does not count as waited."""

import pytest
from lease_builders import NOW, a_lease

from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.transitions import hold_back, let_go


def test_the_time_of_each_rule_adds_up_and_a_clock_moved_back_removes_no_time():
    waits = a_lease()
    assert let_go(waits, NOW) is waits
    first = hold_back(waits, "a quota", "You have 4 of 4.", NOW + 10)
    second = hold_back(first, "a budget", "It is used up.", NOW + 30)
    assert (second.held_back.rule, second.held_back.since, second.held_back_seconds) == ("a budget", NOW + 30, 20)
    assert let_go(second, NOW + 35).held_back_seconds == 25
    assert let_go(second, NOW).held_back_seconds == 20


def test_no_rule_holds_back_what_does_not_wait():
    with pytest.raises(Conflict, match="running"):
        hold_back(a_lease(phase=Phase.RUNNING, held=("a100-0",)), "a quota", "", NOW)
