"""The content of each dashboard: a title, a Grafana unit, expressions with their legends, and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

SHORT, SECONDS, RATIO, BYTES, GPU_HOURS = "short", "s", "percentunit", "bytes", "suffix: GPU h"
HERE = 'job=~"$job"'
"""The filter of each expression: the selected scrape jobs."""


@dataclass(frozen=True)
class Panel:
    """One picture.

    Args:
        title: what is shown.
        expressions: PromQL by legend; a legend may name labels as ``{{kind}}``.
        description: a sentence or two, shown at the panel's ``i``.
        unit: of its values, by Grafana's name.
        form: ``stat`` (the newest number), ``lines``, or ``areas`` that stand on each other.
        columns: of the 24 that a row has.
    """

    title: str
    expressions: dict[str, str]
    description: str
    unit: str = SHORT
    form: str = "lines"
    columns: int = 12


@dataclass(frozen=True)
class Dashboard:
    """One page. ``name`` is its file's name and the end of its ``uid``."""

    name: str
    title: str
    panels: tuple[Panel, ...]


def gpus(states: str, by: str = "") -> str:
    """Return the number of GPUs in these states: a regular expression of PromQL."""
    return f'sum{by}(gpuspawner_gpus{{{HERE}, state=~"{states}"}})'


def quantile(share: float, histogram: str, by: str = "") -> str:
    """Return the time that this share of a histogram's observations did not exceed, over the last six hours."""
    return f"histogram_quantile({share}, sum by (le{by}) (increase({histogram}_bucket{{{HERE}}}[6h])))"


GIVABLE = "free|busy|idle|unmeasured"
FLEET = Dashboard(
    "fleet",
    "gpuspawner: GPUs",
    (
        Panel("GPUs", {"": gpus(".*")}, "Every GPU that the service sees.", form="stat", columns=4),
        Panel(
            "Active",
            {"": f"{gpus('busy')} / {gpus(GIVABLE)}"},
            "Share of the available GPUs whose workspace computes on them now.",
            RATIO,
            "stat",
            4,
        ),
        Panel(
            "Allocated but idle",
            {"": gpus("idle")},
            "Allocated to a workspace that does not compute on them now.",
            form="stat",
            columns=4,
        ),
        Panel("Free", {"": gpus("free")}, "The scheduler can allocate them now.", form="stat", columns=4),
        Panel(
            "Not available",
            {"": gpus("foreign|suspect")},
            "Unhealthy, or used by a program that is not a workspace.",
            form="stat",
            columns=4,
        ),
        Panel(
            "Not measured",
            {"": gpus("unmeasured")},
            "Allocated, but not measured. Such workspaces are never stopped for being idle.",
            form="stat",
            columns=4,
        ),
        Panel(
            "GPUs by state",
            {"{{state}}": gpus(".*", " by (state) ")},
            "All GPUs by their state. A GPU in an unknown state is not shown.",
            form="areas",
            columns=24,
        ),
        Panel(
            "Active share, by kind",
            {"{{kind}}": f"{gpus('busy', ' by (kind) ')} / {gpus(GIVABLE, ' by (kind) ')}"},
            "For each kind, the share of its available GPUs whose workspace computes on them.",
            RATIO,
        ),
        Panel(
            "Free, by kind", {"{{kind}}": gpus("free", " by (kind) ")}, "GPUs of each kind that can be allocated now."
        ),
        Panel(
            "Workspaces by phase",
            {"{{phase}}": f"sum by (phase) (gpuspawner_leases{{{HERE}}})"},
            "Workspaces that have not ended.",
            form="areas",
        ),
        Panel(
            "Ends a day, by reason",
            {"{{reason}}": f"sum by (reason) (increase(gpuspawner_ends_total{{{HERE}}}[1d])) > 0"},
            "Workspaces that ended in the day before each point, by reason.",
        ),
    ),
)
QUEUE = Dashboard(
    "queue",
    "gpuspawner: queue and starts",
    (
        Panel(
            "Waiting", {"": f"sum(gpuspawner_queue_length{{{HERE}}})"}, "Workspaces that wait.", form="stat", columns=6
        ),
        Panel(
            "Median wait",
            {"": quantile(0.5, "gpuspawner_queue_wait_seconds")},
            "Over all grants of the last six hours.",
            SECONDS,
            "stat",
            6,
        ),
        Panel(
            "90th percentile wait",
            {"": quantile(0.9, "gpuspawner_queue_wait_seconds")},
            "Over all grants of the last six hours.",
            SECONDS,
            "stat",
            6,
        ),
        Panel(
            "90th percentile start",
            {"": quantile(0.9, "gpuspawner_start_seconds")},
            "From the grant until the workspace runs, over the last six hours.",
            SECONDS,
            "stat",
            6,
        ),
        Panel(
            "Waiting, by kind",
            {"{{kind}}": f"sum by (kind) (gpuspawner_queue_length{{{HERE}}})"},
            "Workspaces that wait for a GPU of this kind.",
            form="areas",
        ),
        Panel(
            "Free while requests for the kind wait",
            {"{{kind}}": f"{gpus('free', ' by (kind) ')} and sum by (kind) (gpuspawner_queue_length{{{HERE}}}) > 0"},
            "Reserved for requests of several GPUs, or withheld by a rule. The page *Queue* says which.",
        ),
        Panel(
            "Waits",
            {
                "median": quantile(0.5, "gpuspawner_queue_wait_seconds"),
                "90th percentile": quantile(0.9, "gpuspawner_queue_wait_seconds"),
            },
            "Time in the queue of requests that were granted, over six hours.",
            SECONDS,
        ),
        Panel(
            "Error of estimates",
            {
                "median": quantile(0.5, "gpuspawner_queue_estimate_error_seconds"),
                "90th percentile": quantile(0.9, "gpuspawner_queue_estimate_error_seconds"),
            },
            "Difference between the shown start and the real start, over six hours.",
            SECONDS,
        ),
        Panel(
            "Right estimates, last 30 days",
            {
                "{{shown}}": f'sum by (shown) (gpuspawner_queue_estimates{{{HERE}, outcome="right"}}) '
                f"/ (sum by (shown) (gpuspawner_queue_estimates{{{HERE}}}) > 0)"
            },
            "Times that were right within 10 minutes, and ranges that held the start. An overdue start is wrong.",
            RATIO,
        ),
    ),
)
WASTE = Dashboard(
    "waste",
    "gpuspawner: waste and reclaim",
    (
        Panel(
            "GPU hours allocated but idle, last day",
            {"": f'sum(avg_over_time(gpuspawner_gpus{{{HERE}, state="idle"}}[1d])) * 24'},
            "The average over the last day, times 24 hours.",
            GPU_HOURS,
            "stat",
            8,
        ),
        Panel(
            "GPU hours active, last day",
            {"": f'sum(avg_over_time(gpuspawner_gpus{{{HERE}, state="busy"}}[1d])) * 24'},
            "The average over the last day, times 24 hours.",
            GPU_HOURS,
            "stat",
            8,
        ),
        Panel(
            "Reclaimed, last day",
            {"": f'sum(increase(gpuspawner_ends_total{{{HERE}, reason=~"idle|nobody came"}}[1d]))'},
            "Workspaces that were stopped because they were idle, or because their user did not open them.",
            form="stat",
            columns=8,
        ),
        Panel(
            "Allocated but idle, by kind",
            {"{{kind}}": gpus("idle", " by (kind) ")},
            "Allocated GPUs on which no program computes. Other users cannot have them.",
            form="areas",
        ),
        Panel(
            "Results of samples, per hour",
            {"{{result}}": f"sum by (result) (increase(gpuspawner_samples_total{{{HERE}}}[1h]))"},
            "A workspace whose samples are all unknown is never stopped for being idle.",
            form="areas",
        ),
        Panel(
            "Outcomes of idle warnings, per day",
            {"{{outcome}}": f'sum by (outcome) (increase(gpuspawner_warnings_total{{{HERE}, reason="idle"}}[1d]))'},
            "Stopped, kept by the user, used again, or ended for another reason.",
            form="areas",
        ),
    ),
)
TEAMS = Dashboard(
    "teams",
    "gpuspawner: teams and quotas",
    (
        Panel(
            "GPU hours a day, by team",
            {"{{team}}": f"sum by (team) (increase(gpuspawner_lease_gpu_seconds_total{{{HERE}}}[1d])) / 3600"},
            "GPU hours allocated in the day before each point.",
            GPU_HOURS,
            "areas",
            24,
        ),
        Panel(
            "Active share, by team",
            {
                "{{team}}": (
                    f'sum by (team) (increase(gpuspawner_lease_gpu_seconds_total{{{HERE}, state="active"}}[1d]))'
                    f" / sum by (team) (increase(gpuspawner_lease_gpu_seconds_total{{{HERE}}}[1d]) > 0)"
                )
            },
            "Share of the allocated GPU hours in which the workspaces computed.",
            RATIO,
        ),
        Panel(
            "Use of each quota",
            {"{{quota}}: {{limit}}": f"max by (quota, limit) (gpuspawner_quota_used_ratio{{{HERE}}})"},
            "Share of the limit that is used. For a quota of each user, the highest of all users.",
            RATIO,
        ),
    ),
)
SERVICE = Dashboard(
    "service",
    "gpuspawner: the service",
    (
        Panel(
            "Scraped",
            {"": f"min(up{{{HERE}}})"},
            "1 while the service answers, 0 while it does not.",
            form="stat",
            columns=4,
        ),
        Panel(
            "Hub answers",
            {"": f"min(gpuspawner_hub_reachable{{{HERE}}})"},
            "0 while the hub does not answer. Workspaces keep running, and no request starts.",
            form="stat",
            columns=4,
        ),
        Panel(
            "Store takes writes",
            {"": f"min(gpuspawner_store_writable{{{HERE}}})"},
            "0 while the database is not reachable, locked or full. Nothing is granted then.",
            form="stat",
            columns=4,
        ),
        Panel(
            "Catalog is valid",
            {"": f"min(gpuspawner_catalog_reload_success{{{HERE}}})"},
            "0 while the file has errors. The last valid catalog stays in force.",
            form="stat",
            columns=4,
        ),
        Panel(
            "Age of the GPU list",
            {"": f"max(gpuspawner_fleet_age_seconds{{{HERE}}})"},
            "The service reads the list of GPUs every few seconds.",
            SECONDS,
            "stat",
            4,
        ),
        Panel(
            "Oldest sample",
            {"": f"max(gpuspawner_sample_age_seconds{{{HERE}}})"},
            "The age of the oldest newest sample of all running workspaces.",
            SECONDS,
            "stat",
            4,
        ),
        Panel(
            "Processor",
            {"cores": f"sum(rate(process_cpu_seconds_total{{{HERE}}}[5m]))"},
            "CPU cores that the service uses. It mostly uses one thread, so pages become slow near 1.",
        ),
        Panel(
            "Memory",
            {"resident": f"sum(process_resident_memory_bytes{{{HERE}}})"},
            "Resident memory of the service's process.",
            BYTES,
        ),
        Panel(
            "Messages an hour",
            {"{{result}}": f"sum by (result) (increase(gpuspawner_notifications_total{{{HERE}}}[1h]))"},
            "Mail, chat and webhooks: sent, failed, dropped because the queue was full, or without an address.",
        ),
        Panel(
            "Scheduler errors and mismatches, per day",
            {
                "scheduler: {{reason}}": (
                    f"sum by (reason) (increase(gpuspawner_scheduler_errors_total{{{HERE}}}[1d]))"
                ),
                "found {{found}}": f"sum by (found) (increase(gpuspawner_lease_mismatches_total{{{HERE}}}[1d]))",
            },
            "The scheduler did not answer or failed, or a workspace ran without a lease or on other GPUs.",
        ),
        Panel(
            "Ages of GPU list and samples",
            {
                "GPUs": f"max(gpuspawner_fleet_age_seconds{{{HERE}}})",
                "oldest sample": f"max(gpuspawner_sample_age_seconds{{{HERE}}})",
            },
            "If a line grows, the service no longer gets that information.",
            SECONDS,
        ),
    ),
)
DASHBOARDS = (FLEET, QUEUE, WASTE, TEAMS, SERVICE)
