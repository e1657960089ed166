"""Decisions on requests as custom resources depend only on the resources and the leases, not on the past."""

from dataclasses import replace

import pytest
from lease_builders import a_lease

from gpuspawner.backends.custom_resources.base import LIFETIME, Resource
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.custom_resources.decisions import Action, decide

SPEC = {"user": "alice", "server": "one"}


def a_resource(name="r", *, uid="u-1", spec=None, **changes):
    """A held request of alice's workspace `one`, of which nothing was told."""
    values = {"version": "1", "created": "2026-11-25T08:00:00Z", "held": True, **changes}
    return Resource(name, uid, spec={**SPEC, **(spec or {})}, **values)


def decided(*resources, leases=(), accepts="", going=False):
    found = decide(resources, leases, accepts=accepts, going=going)
    return [(step.do, step.lease and step.lease.id) for step in found.steps], [one.id for one in found.without]


def its(phase=Phase.RUNNING, name="u1", **changes):
    """The lease that a resource asked for."""
    return replace(a_lease("one", phase, **changes), id=name)


def test_a_new_one_is_held_and_then_asked_for_once():
    assert decided(a_resource(held=False)) == ([(Action.HOLD, None)], [])
    assert decided(a_resource()) == ([(Action.START, None)], [])
    assert decided(a_resource(), leases=[its(Phase.PARKED)]) == ([(Action.TELL, "u1")], [])
    assert decided(a_resource(held=False), leases=[its()]) == ([(Action.HOLD, "u1")], []), "somebody took the hold away"


def test_without_a_policy_it_waits_and_is_told_why():
    (step,) = decide([a_resource()], [], accepts="no policy", going=False).steps
    assert (step.do, step.why) == (Action.WAIT, "no policy")
    assert decided(a_resource(), leases=[its()], accepts="no policy")[0] == [(Action.TELL, "u1")], "what runs goes on"


def test_a_deleted_request_loses_its_finalizer_once_its_workspace_has_ended():
    one = a_resource(deleting=True)
    assert decided(one, leases=[its()])[0] == [(Action.STOP, "u1")]
    assert decided(one, leases=[its(Phase.STOPPING)])[0] == [(Action.TELL, "u1")]
    assert decided(one)[0] == [(Action.RELEASE, None)]


def test_where_all_go_together_nothing_stops():
    assert decided(a_resource(deleting=True), leases=[its()], going=True)[0] == [(Action.RELEASE, "u1")]


def test_the_second_one_for_a_place_is_refused_and_stays_so():
    second = a_resource("second", uid="u-2", created="2026-11-25T09:00:00Z")
    steps = decide([second, a_resource()], [its()], accepts="", going=False).steps
    assert [step.do for step in steps] == [Action.REFUSE, Action.TELL]
    assert "alice has a workspace called one already (u1)" in steps[0].why
    unnamed = decide([a_resource(spec={"server": ""})], [a_lease(key=a_lease("").key)], accepts="", going=False).steps
    assert "without a name" in unnamed[0].why
    judged = a_resource(status={"phase": "Refused", "observedGeneration": 1})
    assert decided(judged)[0] == [(Action.TELL_END, None)]
    edited = a_resource(generation=2, status={"phase": "Refused", "observedGeneration": 1})
    assert decided(edited)[0] == [(Action.START, None)]


def test_an_end_is_told_and_what_the_service_made_goes():
    assert decided(a_resource(status={"lease": "u1", "phase": "Running"}))[0] == [(Action.TELL_END, None)]
    assert decided(a_resource(of_lease="old"))[0] == [(Action.DELETE, None)]


def test_a_workspace_of_another_door_is_without_one_until_it_has_one():
    assert decided(leases=[its()]) == ([], ["u1"])
    made = a_resource(uid="made", of_lease="u1")
    assert decided(made, leases=[its()]) == ([(Action.TELL, "u1")], [])


def test_a_label_or_a_status_that_names_anothers_is_not_believed():
    others = its(user="bob")
    for one in (a_resource(of_lease="u1", uid="x"), a_resource(status={"lease": "u1"}, uid="x")):
        steps, without = decided(one, leases=[others])
        assert steps[0][1] is None
        assert without == ["u1"]


def test_each_workspace_is_of_one_the_oldest():
    first, second = (a_resource(uid=uid, created=uid, of_lease="u1") for uid in ("a", "b"))
    assert decided(second, first, leases=[its()])[0] == [(Action.DELETE, None), (Action.TELL, "u1")]


def test_workspaces_back_in_the_queue_or_restarted_keep_their_request():
    after = its(Phase.PARKED, "new", follows="u1")
    for phase in ("Running", "Ended"):
        told = a_resource(status={"lease": "u1", "phase": phase})
        assert decided(told, leases=[after]) == ([(Action.TELL, "new")], [])
    made = a_resource(uid="made", of_lease="u1")
    assert decided(made, leases=[after]) == ([(Action.TELL, "new")], []), "also before anything of it was told"
    assert decided(told, leases=[its(Phase.PARKED, "new")])[1] == ["new"], "somebody asked anew"


@pytest.mark.parametrize(
    ("lifetime", "step"),
    [
        ("2h", Action.EXTEND),
        ("30m", Action.EXTEND),
        ("nonsense", Action.EXTEND),
        ("1h", Action.TELL),
        (None, Action.TELL),
        ("3h", Action.TELL),
    ],
)
def test_a_lifetime_that_was_edited_extends_once(lifetime, step):
    lease = its(extended_seconds=7200.0)
    spec = {} if lifetime is None else {"lifetime": lifetime}
    assert decided(a_resource(spec=spec), leases=[lease])[0] == [(step, "u1")]
    tried = a_resource(spec=spec, status={"conditions": [{"type": LIFETIME, "observedGeneration": 1}]})
    assert decided(tried, leases=[lease])[0] == [(Action.TELL, "u1")]
    assert decided(a_resource(spec=spec), leases=[its(Phase.PARKED)])[0] == [(Action.TELL, "u1")], "once it runs"
