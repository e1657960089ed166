"""The problems that administrators read on the first page, each with its remedy. The gravest comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuspawner.core.gpus.fleet import Gpu
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.outages import DATABASE, ETCD, HUB
from gpuspawner.core.quotas.namespaces import full_volumes_words
from gpuspawner.core.units import show_count, show_duration
from gpuspawner.service.administration.restriction_effects import lease_title
from gpuspawner.service.engine.sampling.gpu_states import find_unmatched_kinds, find_unmeasured_kinds
from gpuspawner.service.failures import Failure
from gpuspawner.service.notifications.sender import TEAM, USER
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import idle_policy_of
from gpuspawner.service.workspaces.idleness import has_monitor

MIN_FAILED, LAST_STARTS = 2, 5
"""A template is a problem if this many of its last starts failed. Arbitrary: one failure is an accident."""
LATE_PERIODS = 5
"""A workspace is not measured after this number of sampling periods without a reading. Arbitrary."""
NAMES_SHOWN = 5
OLD_SECONDS = 60.0
"""The list of GPUs is read every 5 s. An older one is a problem."""
REMEDY = (
    "Nothing new starts meanwhile. Running workspaces go on, and queue positions stay. Run gpuspawner server doctor."
)
"""The remedy for a cluster or a scheduler that does not answer."""
REMEDIES = {
    DATABASE: (
        "Nothing starts or stops meanwhile, and no reading is stored. Running workspaces go on. "
        "Check the database and its disk."
    ),
    HUB: "Nothing starts or stops meanwhile, and queue positions stay. Check the hub's log.",
    ETCD: f"{REMEDY} Check etcd's log. The API server itself answers.",
}


@dataclass(frozen=True)
class Problem:
    """One problem.

    Args:
        what: the problem in a sentence.
        remedy: the effect and the next step, "" if ``what`` says it.
        grave: whether nothing can start or be stored meanwhile.
        about_readings: whether it is only about readings.
        pages: where to look: words and address.
    """

    what: str
    remedy: str = ""
    grave: bool = False
    about_readings: bool = False
    pages: tuple[tuple[str, str], ...] = ()


def find_problems(state: Parts, ended: Iterable[Lease], disputed: Iterable[Lease]) -> list[Problem]:
    """Return all problems. ``ended`` are the last ended workspaces, ``disputed`` those with an unanswered report.

    While the database does not answer, readings are not stored, so that late readings prove nothing.
    """
    found = [*_service_problems(state), *_failing_steps(state), *_catalog_problems(state)]
    if state.store.outage is None:
        found += [*_unmeasured_nodes(state), *_missing_monitors(state)]
    found += [
        *_failing_templates(state, ended),
        *_undelivered_messages(state),
        *_unanswered_reports(state, disputed),
        *_adopted_workspaces(state),
    ]
    return sorted(found, key=lambda one: (not one.grave, one.about_readings))


def _service_problems(state: Parts) -> Iterator[Problem]:
    now, fleet = state.clock.now(), state.scheduler.fleet
    for outage in state.queue.outages():
        why = f" {outage.why}" if outage.why else ""
        yield Problem(f"{outage.words(now)}{why}", REMEDIES.get(outage.part, REMEDY), grave=True)
    if not state.allocator.observed.hub_answers and state.allocator.observed.hub_outage is None:
        yield Problem("The hub has not answered yet.", REMEDIES[HUB], grave=True)
    if damaged := sorted(state.store.damaged.found):
        named = ", ".join(damaged[:NAMES_SHOWN])
        what = f"{show_count(len(damaged), 'row')} of the database can't be read: {named}. Lists leave them out."
        yield Problem(what, "The service's log has the reason. Restore a backup, or delete these rows.")
    for sentence in (*state.scheduler.unseen, *filter(None, (lacking() for lacking in state.lacking))):
        yield Problem(sentence, grave=not fleet.complete)
    if full := full_volumes_words(state.scheduler.room):
        yield Problem(full, "Users without a home volume cannot start. Raise the quota, or delete unused volumes.")
    yield from _lost_nodes(state)
    if fleet.complete and fleet.outage is None and now - fleet.observed_at > OLD_SECONDS:
        age = show_duration(now - fleet.observed_at)
        remedy = "Run gpuspawner server doctor. It says why the list can't be read."
        yield Problem(f"The list of GPUs is {age} old.", remedy, grave=True)
    if state.engine.observer.orphans.alert:
        yield Problem(state.engine.observer.orphans.alert)
    dcgm = (state.sampler.dcgm.trouble, *state.sampler.doubts.sentences(now))
    for sentence in (
        *state.engine.observer.orphans.lost_identities,
        *state.members.find_missing(),
        *filter(None, dcgm),
    ):
        yield Problem(sentence)


def _lost_nodes(state: Parts) -> Iterator[Problem]:
    """Yield a problem for each node of which no GPU can be granted, for many nodes one, and for other faulty GPUs."""
    fleet, nodes = state.scheduler.fleet, dict[str, list[Gpu]]()
    for gpu in () if fleet.outage is not None else fleet.gpus:
        if fleet.outage_of(gpu.cluster) is None and not gpu.is_coming:
            nodes.setdefault(gpu.node, []).append(gpu)
    lost = {node: gpus for node, gpus in nodes.items() if not any(gpu.healthy or gpu.foreign for gpu in gpus)}
    yield from _faulty_gpus(state, [gpu for node, gpus in nodes.items() if node not in lost for gpu in gpus])
    remedy = (
        "No new workspace gets them. Workspaces there keep their GPUs. Check the node, or run gpuspawner server doctor."
    )
    if len(lost) > NAMES_SHOWN:
        named, count = ", ".join(sorted(lost)[:NAMES_SHOWN]), sum(map(len, lost.values()))
        yield Problem(f"All {count} GPUs of {len(lost)} nodes are out of service: {named} and others.", remedy)
        return
    for node, gpus in sorted(lost.items()):
        of_node = {gpu.id for gpu in gpus}
        leases = [lease for lease in state.registry if any(slot.gpu in of_node for slot in lease.slots)]
        which = f"The only GPU of {node} is" if len(gpus) == 1 else f"All {len(gpus)} GPUs of {node} are"
        what = f"{which} out of service: {gpus[0].note or 'no reason is known'}."
        yield Problem(what, remedy, pages=_pages(state, leases))


def _faulty_gpus(state: Parts, gpus: Iterable[Gpu]) -> Iterator[Problem]:
    """Yield one problem for the faulty ones of these GPUs, without those that an administrator took out of service."""
    faulty = [gpu for gpu in gpus if not (gpu.healthy or gpu.closed)]
    if not faulty:
        return
    if len(faulty) == 1:
        gpu = faulty[0]
        which = "A GPU" if gpu.group else f"GPU {gpu.index}"  # devices of a group are only counted
        what = f"{which} of {gpu.node} is faulty: {(gpu.note or 'no reason is known').rstrip('.')}."
        remedy, link = "No new workspace gets it. A workspace that has it keeps it.", "View it"
    else:
        nodes = Counter(gpu.node for gpu in faulty).most_common()
        named = ", ".join(f"{count} of {node}" for node, count in nodes[:NAMES_SHOWN])
        what = f"{len(faulty)} GPUs are faulty: {named}{' and others' if len(nodes) > NAMES_SHOWN else ''}."
        remedy, link = "No new workspace gets them. Workspaces that have them keep them.", "View them"
    yield Problem(what, remedy, pages=((link, f"{state.prefix}console/gpus?view=list&state=suspect"),))


def _failing_steps(state: Parts) -> Iterator[Problem]:
    """Yield a problem for each step that fails by a defect of the service."""
    failing: dict[str, list[Failure]] = {}
    for one in state.registry.failures.now():
        failing.setdefault(one.step, []).append(one)
    remedy = "The service tries again. Everything else goes on. Its log has the traceback. Please report it."
    for step, found in failing.items():
        first, concerns_all = found[0], any(not one.subject for one in found)
        leases = [lease for one in found if (lease := state.registry.get(one.subject)) is not None]
        whose = f" for {show_count(len(leases))}" if leases else ""
        what = f"The step “{step}” has failed{whose} for {show_duration(first.since)} ({first.why})."
        yield Problem(what, remedy, grave=concerns_all, pages=_pages(state, leases))


def _catalog_problems(state: Parts) -> Iterator[Problem]:
    for sentence in state.in_force.sentences:
        yield Problem(sentence)
    kinds, fleet = state.catalog.gpus.values(), state.scheduler.fleet
    for sentence in (*find_unmatched_kinds(kinds, fleet), *find_unmeasured_kinds(kinds, fleet)):
        yield Problem(sentence)


def _unmeasured_nodes(state: Parts) -> Iterator[Problem]:
    """Yield a problem for each node with workspaces that can't be measured, for many nodes one."""
    nodes: dict[str, list[Lease]] = {}
    for lease in state.registry:
        if is_unmeasured(state, lease):
            node = next(filter(None, (state.scheduler.fleet.node_of(slot.gpu) for slot in lease.slots)), "not known")
            nodes.setdefault(node, []).append(lease)
    remedy = (
        "No workspace there is stopped as idle meanwhile. Run nvidia-smi in one of them, and gpuspawner server doctor."
    )
    in_order = sorted(nodes.items(), key=lambda one: (-len(one[1]), one[0]))
    if len(in_order) > NAMES_SHOWN:
        named = ", ".join(f"{node} ({len(leases)})" for node, leases in in_order[:NAMES_SHOWN])
        count = sum(map(len, nodes.values()))
        what = f"{count} workspaces on {len(in_order)} nodes can't be measured, most of them on {named}."
        pages = (("View them", f"{state.prefix}console/workspaces?state=unknown"),)
        yield Problem(what, remedy, about_readings=True, pages=pages)
        return
    for node, leases in in_order:
        why = leases[0].streak.because
        what = f"{show_count(len(leases))} on {node} can't be measured{f': {why}' if why else ''}."
        yield Problem(what, remedy, about_readings=True, pages=_pages(state, leases))


def _missing_monitors(state: Parts) -> Iterator[Problem]:
    """Yield a problem if the GPU monitor is missing in workspaces, and no other source sees all of the time."""
    leases = [lease for lease in state.registry if lease.phase in UP and has_monitor(state, lease) is False]
    if not leases:
        return
    templates = sorted({lease.request.template for lease in leases if lease.request.template})
    named = f" of the templates {', '.join(templates[:NAMES_SHOWN])}" if templates else ""
    what = f"The GPU monitor does not run in {show_count(len(leases))}. GPU work of a few seconds may be missed there."
    remedy = (
        f"Install gpuspawner[workspace] where workspaces{named} run (on Kubernetes: the image), or use DCGM exporter."
    )
    yield Problem(what, remedy, about_readings=True, pages=_pages(state, leases))


def is_unmeasured(state: Parts, lease: Lease) -> bool:
    """Return whether an idle rule applies to a workspace, and its readings are late or prove nothing."""
    now, kind = state.clock.now(), lease.streak.kind
    policy = idle_policy_of(state.catalog, lease, now) if lease.phase in UP and lease.slots else None
    if policy is None:
        return False
    late = now - (lease.sampled_at or lease.running_at or now) >= LATE_PERIODS * policy.sample_seconds
    # In its first minute no workspace has a reading that proves anything.
    since_start_up = now - (lease.running_at or now) - policy.start_up_seconds
    return late or (kind is not None and kind.value == "unknown" and since_start_up >= policy.sample_seconds)


def _failing_templates(state: Parts, ended: Iterable[Lease]) -> Iterator[Problem]:
    """Yield a problem for each template of whose last starts several failed, also the newest."""
    last: dict[str, list[Lease]] = {}
    for lease in ended:
        if lease.reason is not ExitReason.CANCELLED and lease.request.template in state.catalog.templates:
            last.setdefault(lease.request.template, []).append(lease)
    for name, leases in last.items():
        failed = [x for x in leases[:LAST_STARTS] if x.reason is ExitReason.FAILED and x.running_at is None]
        if len(failed) < MIN_FAILED or leases[0] is not failed[0]:
            continue
        template = state.catalog.templates[name]
        image = f" (image {template.image})" if template.image else ""
        times = f"{len(failed)} of the last {len(leases[:LAST_STARTS])} times"
        what = f"The template {template.title}{image} failed to start {times}. {failed[0].message}"
        remedy = "Check its image, its pull secret and its start-up. The page of each workspace has the last output."
        yield Problem(what, remedy, pages=_pages(state, failed))


def _undelivered_messages(state: Parts) -> Iterator[Problem]:
    now, counts = state.clock.now(), state.notifier.counts
    for channel, trouble in sorted(state.notifier.troubles.items()):
        is_of_team = channel.startswith(f"{TEAM} ")
        whose = "users" if channel == USER else f"the chat of {channel}" if is_of_team else "administrators"
        what = f"No message to {whose} was delivered for {show_duration(now - trouble.since)} ({trouble.why})."
        count = state.notifier.waiting
        waiting = (
            f"{show_count(count, 'message')} {'waits' if count == 1 else 'wait'}. The service tries again for a day."
        )
        settings = "service_settings.notify_users, notify_admins and notify_teams, and the server that they name"
        yield Problem(what, f"{waiting} Check {settings}.")
    lost = {name: counts[name] for name in ("dropped", "unaddressed") if counts[name]}
    if lost:
        total = sum(counts.values()) - counts["failed"]
        reasons = ", ".join(f"{count} {name}" for name, count in lost.items())
        what = f"{sum(lost.values())} of {show_count(total, 'message')} since the last start were lost ({reasons})."
        yield Problem(what, "The service's log names each. Check service_settings.notify_users and its mail server.")


def _unanswered_reports(state: Parts, disputed: Iterable[Lease]) -> Iterator[Problem]:
    leases = list(disputed)
    if leases:
        what = f"{show_count(len(leases), 'stop')} {'was' if len(leases) == 1 else 'were'} reported as wrong."
        remedy = "Look at the readings, and answer on the page of each workspace."
        pages = tuple(
            (f"{x.user}: “{x.dispute.sentence}”" if x.dispute and x.dispute.sentence else x.user, _page(state, x))
            for x in leases[:NAMES_SHOWN]
        )
        yield Problem(what, remedy, pages=pages)


def _adopted_workspaces(state: Parts) -> Iterator[Problem]:
    leases = [x for x in state.registry if x.phase in UP and x.unasked]
    if leases:
        what = (
            f"{show_count(len(leases))} started without the GPU service, before its installation or while it was away."
        )
        remedy = "They have no end until their next start. Their idle time counts from when the service took them over."
        yield Problem(what, remedy, pages=_pages(state, leases))


def _pages(state: Parts, leases: Iterable[Lease]) -> tuple[tuple[str, str], ...]:
    shown = list(leases)[:NAMES_SHOWN]
    return tuple((lease_title(x), _page(state, x)) for x in shown)


def _page(state: Parts, lease: Lease) -> str:
    return f"{state.prefix}workspaces/{lease.id}"
