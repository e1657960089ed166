"""The numbers that pages state, from models and constants of the code. A page marks one with ``<!-- fact NAME -->``."""

from demo.data import FAST_FACTOR
from gpuspawner.backends.kubernetes.pods import SERVER_SECONDS
from gpuspawner.catalog import document, watched_file
from gpuspawner.catalog.resources import merging
from gpuspawner.catalog.template_models import OnStop
from gpuspawner.core.administration import LONGEST_CHARACTERS, NOTICE_KEPT_SECONDS
from gpuspawner.core.authentication import TICKET_SECONDS, WINDOW_SECONDS
from gpuspawner.core.errors import LARGEST_REQUEST_BYTES
from gpuspawner.core.idle import readings as readings_of_idle
from gpuspawner.core.idle import verdicts
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.leases import reports, transitions
from gpuspawner.core.leases.steps import NEAR_START_SECONDS
from gpuspawner.core.number_fields import LONGEST_ON_STOP_SECONDS
from gpuspawner.core.queue import calibration, estimates, preemption, run_times
from gpuspawner.core.queue.calibration import NEAR_SECONDS
from gpuspawner.core.quotas import quota_requests
from gpuspawner.core.quotas.ledger import HALF_LIFE_SECONDS
from gpuspawner.core.schedules import MOST_MISSED
from gpuspawner.schedulers.http import client
from gpuspawner.schedulers.http.client import MIN_HOLD_SECONDS
from gpuspawner.schedulers.http.sync import FULL_SECONDS
from gpuspawner.service.api.rest import keys
from gpuspawner.service.app import AUTH_SECONDS
from gpuspawner.service.engine.allocation import estimates as engine_estimates
from gpuspawner.service.engine.allocation import estimates as estimate_records
from gpuspawner.service.engine.allocation import size_changes
from gpuspawner.service.engine.sampling import gpu_health
from gpuspawner.service.engine.sampling import sampler as sample_watches
from gpuspawner.service.metrics.collector import MAX_SERIES
from gpuspawner.service.notifications import sender
from gpuspawner.service.process import connections
from gpuspawner.service.process import service as service_process
from gpuspawner.service.process.serve_options import SHORTEST_TOKEN
from gpuspawner.service.settings import Settings
from gpuspawner.service.sign_in import tokens
from gpuspawner.service.start.schedules import MAX_SCHEDULES
from gpuspawner.service.store import history, readings
from gpuspawner.service.store.administration import MAX_VERSIONS
from gpuspawner.service.store.database import postgresql
from gpuspawner.spawner.configure import PORT
from gpuspawner.spawner.kubernetes import volumes
from gpuspawner.spawner.kubernetes.spawner import GPUSpawner
from gpuspawner.workspace.home import session
from gpuspawner.workspace.home.own_files import LONGEST_SECONDS

POLICY, SETTINGS, ON_STOP = LifecyclePolicy(), Settings(), OnStop()
IDLE, KEEP, EXTEND, PREEMPTION = POLICY.idle, POLICY.keep, POLICY.extend, POLICY.preemption
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
ORDINALS = {1: "first", 2: "second", 3: "third"}
UNITS = {604800: "week", 86400: "day", 3600: "hour", 60: "minute", 1: "second"}


def seconds(value):
    return f"{value:g} s"


def minutes(value):
    return f"{value / 60:g} min"


def hours(value):
    return f"{value / 3600:g} h"


def days(value):
    return f"{value / 86400:g} days"


def words_of(value):
    """Return a time in words, for example "a day" or "two hours"."""
    size = next(one for one in UNITS if value >= one and value % one == 0)
    return f"a {UNITS[size]}" if value == size else f"{NUMBERS[value // size]} {UNITS[size]}s"


FACTS = {
    "announcement.characters": f"at most {LONGEST_CHARACTERS} characters",
    "api.key": f"kept for {words_of(keys.KEPT_SECONDS)}",
    "catalog.versions": f"{MAX_VERSIONS} versions",
    "catalog.look": f"every {words_of(watched_file.LOOK_SECONDS)}",
    "connections.body": seconds(connections.BODY_SECONDS),
    "connections.head": seconds(connections.WAITING_SECONDS),
    "connections.most": f"{connections.MOST_STRANGERS:,} connections",
    "catalog.request": f"{LARGEST_REQUEST_BYTES / 1024:g} KiB",
    "change.notice": f"{size_changes.NOTICE_SECONDS / 60:g} minutes before the restart",
    "data.blocked": f"After {words_of(volumes.BLOCKED_SECONDS)}",
    "dcgm.differs": f"for {words_of(sample_watches.TOLD_SECONDS)}",
    "demo.fast": f"by {FAST_FACTOR:g}",
    "demo.keep": f"{KEEP.each_seconds / 3600:g} hours, or {KEEP.each_seconds / 60 / FAST_FACTOR:g} minutes with "
    "`FAST=1`",
    "demo.times": f"{NUMBERS[KEEP.times]} times",
    "estimate.every": f"every {words_of(engine_estimates.EVERY_SECONDS)}",
    "estimate.horizon": f"the next {words_of(estimates.HORIZON_SECONDS)}",
    "estimate.kept": f"kept for {days(history.HISTORY_SECONDS)}",
    "estimate.most": f"the first {estimates.MOST_ESTIMATED}",
    "estimate.near": f"within {NEAR_SECONDS / 60:g} minutes",
    "estimate.outcomes": f"the last {calibration.MOST_ERRORS} outcomes",
    "estimate.reported": f"the last {days(estimate_records.REPORT_SECONDS)}",
    "estimate.window": f"the {estimates.WINDOW_SECONDS / 60:g} minutes",
    "forecast.draws": f"On {estimates.DRAWS}",
    "forecast.least": f"Until {run_times.LEAST_RUNS}",
    "forecast.past": f"the last {run_times.MOST_RUNS:,}",
    "health.look": f"every {seconds(gpu_health.LOOK_SECONDS)}",
    "http.all": f"every {FULL_SECONDS:g} seconds",
    "http.hold": seconds(MIN_HOLD_SECONDS),
    "http.signed": f"{words_of(client.MAX_AGE_SECONDS)} old",
    "idle.closer": f"every {verdicts.CLOSEST_SECONDS:g} seconds",
    "idle.empty": f"{readings_of_idle.CONTEXT_BYTES / 2**20:g} MiB",
    "idle.unknown": f"more than {words_of(verdicts.LONGEST_UNKNOWN * IDLE.sample_seconds)}",
    "inbox.days": f"for {days(NOTICE_KEPT_SECONDS)}",
    "login.admin": hours(tokens.ADMIN_SECONDS).replace(" h", " hours"),
    "login.days": days(tokens.TOKEN_SECONDS),
    "message.waits": f"for {words_of(sender.GIVEN_UP_SECONDS)}",
    "metrics.token": f"{SHORTEST_TOKEN} letters or more",
    "metrics.series": f"at most {MAX_SERIES:,}",
    "on_stop.most": minutes(LONGEST_ON_STOP_SECONDS),
    "on_stop.timeout": seconds(ON_STOP.timeout_seconds),
    "output.days": days(reports.KEPT_SECONDS),
    "output.lines": f"last {reports.LINES} lines",
    "output.size": f"{reports.BYTES / 1024:g} KiB",
    "pods.grace": seconds(GPUSpawner.gpu_grace_seconds.default_value - SERVER_SECONDS),
    "policy.also_counts": f"`[{', '.join(POLICY.also_counts)}]`",
    "policy.below": f"{IDLE.below_percent:g} %",
    "policy.claim": minutes(POLICY.claim_seconds),
    "policy.coverage": f"{IDLE.coverage:.0%}".replace("%", " %"),
    "policy.cpu_bound": f"{IDLE.cpu_bound_cores:g} cores",
    "policy.extend": f"by {hours(EXTEND.each_seconds)} each time, {hours(EXTEND.total_seconds)} in total",
    "policy.grace": minutes(IDLE.grace_seconds),
    "policy.held_bound": f"{IDLE.held_bound_cores:g} cores",
    "policy.idle_for": minutes(IDLE.for_seconds),
    "policy.keep": f"{KEEP.times} times {hours(KEEP.each_seconds)}",
    "policy.mode": f"`{POLICY.mode.value}`",
    "policy.notice": minutes(PREEMPTION.notice_seconds),
    "policy.protected": minutes(PREEMPTION.protected_seconds),
    "policy.sample": seconds(IDLE.sample_seconds),
    "policy.soft": hours(IDLE.soft_seconds),
    "policy.wait": hours(POLICY.queue.longest_wait_seconds),
    "policy.warn": f"{hours(EXTEND.warn_seconds[0])} and {minutes(EXTEND.warn_seconds[1])}",
    "postgresql.connections": f"{postgresql.CONNECTIONS} connections",
    "preemption.hold": minutes(preemption.HOLD_SECONDS),
    "proof.seconds": f"{WINDOW_SECONDS:g} seconds",
    "readings.maxima": days(readings.MAXIMA_SECONDS),
    "readings.raw": hours(readings.RAW_SECONDS),
    "request.longest": f"within {days(quota_requests.LONGEST_SECONDS)}",
    "request.most": f"{quota_requests.MAX_OPEN} open requests",
    "request.reminder": f"After {words_of(quota_requests.REMIND_SECONDS)} without an answer",
    "resource.all": f"{document.LARGEST_BYTES / 1024:g} KiB",
    "resource.one": f"{merging.LARGEST_SPEC_BYTES / 1024:g} KiB",
    "schedule.missed": f"{NUMBERS[MOST_MISSED]} such days",
    "schedule.most": f"{MAX_SCHEDULES} schedules",
    "service.end": seconds(service_process.END_SECONDS),
    "service.port": f"port {PORT}",
    "session.most": f"{session.MOST_NOTEBOOKS} notebooks, {session.MOST_TERMINALS} terminals and "
    f"{session.MOST_PACKAGES} packages",
    "settings.keep_ended": days(SETTINGS.keep_ended_seconds),
    "settings.keep_use": days(SETTINGS.keep_use_seconds),
    "settings.no_room": seconds(SETTINGS.no_room_seconds),
    "settings.no_room_wait": seconds(SETTINGS.no_room_wait_seconds),
    "settings.orphan": f"{NUMBERS[SETTINGS.orphan_seconds / 60]} minutes",
    "sign_in.known": f"{AUTH_SECONDS} seconds",
    "start.failures": f"The {ORDINALS[transitions.START_LIMIT]} failure",
    "start.near": f"about {NEAR_START_SECONDS / 60:g} minutes away",
    "startup.limit": minutes(LONGEST_SECONDS).replace(" min", " minutes"),
    "ticket.seconds": f"{TICKET_SECONDS:g} seconds",
    "usage.half_life": f"half as much after {words_of(HALF_LIFE_SECONDS)}",
}
"""The text right before the mark."""
