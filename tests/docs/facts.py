"""The numbers that pages state, from models and constants of the code. A page marks one with ``<!-- fact NAME -->``."""

from demo.data import FAST_FACTOR
from gpuspawner.backends.kubernetes.pods import SERVER_SECONDS
from gpuspawner.catalog.models import OnStop
from gpuspawner.core.administration import LONGEST_CHARACTERS
from gpuspawner.core.authentication import TICKET_SECONDS, WINDOW_SECONDS
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.leases import reports
from gpuspawner.core.number_fields import LONGEST_ON_STOP_SECONDS
from gpuspawner.core.queue import estimates, forecasts, preemption, run_times
from gpuspawner.core.schedules import MOST_MISSED
from gpuspawner.schedulers.http.client import MIN_HOLD_SECONDS
from gpuspawner.schedulers.http.sync import FULL_SECONDS
from gpuspawner.service import connections
from gpuspawner.service.metrics.per_user import MAX_SERIES
from gpuspawner.service.settings import Settings
from gpuspawner.service.sign_in import tokens
from gpuspawner.service.start.schedules import MAX_SCHEDULES
from gpuspawner.service.store import readings
from gpuspawner.spawner.configure import PORT
from gpuspawner.spawner.kubernetes.spawner import GPUSpawner
from gpuspawner.workspace.home.own_files import LONGEST_SECONDS

POLICY, SETTINGS, ON_STOP = LifecyclePolicy(), Settings(), OnStop()
IDLE, KEEP, EXTEND, PREEMPTION = POLICY.idle, POLICY.keep, POLICY.extend, POLICY.preemption
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}


def seconds(value):
    return f"{value:g} s"


def minutes(value):
    return f"{value / 60:g} min"


def hours(value):
    return f"{value / 3600:g} h"


def days(value):
    return f"{value / 86400:g} days"


FACTS = {
    "announcement.characters": f"at most {LONGEST_CHARACTERS} characters",
    "connections.body": seconds(connections.BODY_SECONDS),
    "connections.head": seconds(connections.WAITING_SECONDS),
    "connections.most": f"{connections.MOST_STRANGERS:,} connections",
    "demo.fast": f"by {FAST_FACTOR:g}",
    "forecast.draws": f"On {estimates.DRAWS}",
    "forecast.least": f"Until {run_times.LEAST_RUNS}",
    "forecast.most": f"The first {forecasts.MOST_FORECAST}",
    "forecast.past": f"the last {run_times.MOST_RUNS:,}",
    "http.all": f"every {FULL_SECONDS:g} seconds",
    "http.hold": seconds(MIN_HOLD_SECONDS),
    "login.admin": hours(tokens.ADMIN_SECONDS).replace(" h", " hours"),
    "login.days": days(tokens.TOKEN_SECONDS),
    "metrics.series": f"at most {MAX_SERIES:,}",
    "on_stop.most": minutes(LONGEST_ON_STOP_SECONDS),
    "on_stop.timeout": seconds(ON_STOP.timeout_seconds),
    "output.days": days(reports.KEPT_SECONDS),
    "output.lines": f"last {reports.LINES} lines",
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
    "preemption.hold": minutes(preemption.HOLD_SECONDS),
    "proof.seconds": f"{WINDOW_SECONDS:g} seconds",
    "readings.maxima": days(readings.MAXIMA_SECONDS),
    "readings.raw": hours(readings.RAW_SECONDS),
    "schedule.missed": f"{NUMBERS[MOST_MISSED]} such days",
    "schedule.most": f"{MAX_SCHEDULES} schedules",
    "service.port": f"port {PORT}",
    "settings.keep_ended": days(SETTINGS.keep_ended_seconds),
    "settings.keep_use": days(SETTINGS.keep_use_seconds),
    "settings.no_room": seconds(SETTINGS.no_room_seconds),
    "settings.no_room_wait": seconds(SETTINGS.no_room_wait_seconds),
    "settings.orphan": f"{NUMBERS[SETTINGS.orphan_seconds / 60]} minutes",
    "startup.limit": minutes(LONGEST_SECONDS).replace(" min", " minutes"),
    "ticket.seconds": f"{TICKET_SECONDS:g} seconds",
}
"""The text right before the mark."""
