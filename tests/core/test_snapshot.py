"""A claim's revision: by it an answer to what was asked before is told from one that counts."""

from dataclasses import replace

import pytest
from lease_builders import NOW, a_lease, a_request

from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.snapshot import claim_of

CHANGES = {
    "another attempt": lambda x: transitions.join(x, x.request, {}, start_id="2", boot_id="b", now=NOW),
    "another request": lambda x: replace(x, request=a_request(count=2)),
    "a start that was dropped": lambda x: transitions.drop_start(transitions.grant(x, (), NOW), NOW),
    "a grant that lapsed": lambda x: transitions.lapse(transitions.grant(x, (), NOW), NOW),
    "a hub that went away": lambda x: transitions.park(transitions.grant(x, (), NOW), NOW),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_revision_changes_with_the_request_the_attempt_and_each_expiry(change):
    lease = a_lease("a")
    assert claim_of(change(lease)).revision != claim_of(lease).revision
    assert claim_of(transitions.note_heard(transitions.park(lease, NOW), NOW)).revision == claim_of(lease).revision, (
        "who listens"
    )


def test_an_expired_grant_keeps_its_place_and_other_requests_keep_waiting():
    reserved = transitions.grant(a_lease("a"), (), NOW + 1)
    for lease, phase in ((reserved, Phase.QUEUED), (replace(reserved, unattended=True), Phase.PARKED)):
        lapsed = transitions.lapse(lease, NOW + 2)
        assert (lapsed.phase, lapsed.asked_at, lapsed.attempt, lapsed.granted_at) == (phase, NOW, 1, None)
