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
        Panel("GPUs", {"": gpus(".*")}, "All that are seen.", form="stat", columns=4),
        Panel(
            "At work", {"": f"{gpus('busy')} / {gpus(GIVABLE)}"},
            "Share of the GPUs that may be given whose workspace computes on them.", RATIO, "stat", 4,
        ),
        Panel(
            "Held but idle", {"": gpus("idle")},
            "Held by a workspace that computes on none of them now.", form="stat", columns=4,
        ),
        Panel("Free", {"": gpus("free")}, "May be given now.", form="stat", columns=4),
        Panel(
            "Not to be given", {"": gpus("foreign|suspect")},
            "Used by what is no workspace, or not healthy.", form="stat", columns=4,
        ),
        Panel(
            "Not measured", {"": gpus("unmeasured")},
            "Held, and nobody can say whether they compute. They are never taken back as idle.",
            form="stat", columns=4,
        ),
        Panel(
            "GPUs by state", {"{{state}}": gpus(".*", " by (state) ")},
            "What all GPUs do. What is unknown has no line.", form="areas", columns=24,
        ),
        Panel(
            "Share at work, by kind",
            {"{{kind}}": f"{gpus('busy', ' by (kind) ')} / {gpus(GIVABLE, ' by (kind) ')}"},
            "Of the GPUs of a kind that may be given, the share whose workspace computes.", RATIO,
        ),
        Panel("Free, by kind", {"{{kind}}": gpus("free", " by (kind) ")}, "What could be given at once."),
        Panel(
            "Workspaces by phase", {"{{phase}}": f"sum by (phase) (gpuspawner_leases{{{HERE}}})"},
            "Every workspace that has not ended.", form="areas",
        ),
        Panel(
            "Ends a day, by reason",
            {"{{reason}}": f"sum by (reason) (increase(gpuspawner_ends_total{{{HERE}}}[1d])) > 0"},
            "Why workspaces ended in the day before each point.",
        ),
    ),
)  # fmt: skip
QUEUE = Dashboard(
    "queue",
    "gpuspawner: queue and starts",
    (
        Panel(
            "Waiting", {"": f"sum(gpuspawner_queue_length{{{HERE}}})"}, "Workspaces that wait.", form="stat", columns=6
        ),
        Panel(
            "Half waited at most", {"": quantile(0.5, "gpuspawner_queue_wait_seconds")},
            "Of the grants of the last six hours.", SECONDS, "stat", 6,
        ),
        Panel(
            "9 of 10 waited at most", {"": quantile(0.9, "gpuspawner_queue_wait_seconds")},
            "Of the grants of the last six hours.", SECONDS, "stat", 6,
        ),
        Panel(
            "9 of 10 starts took at most", {"": quantile(0.9, "gpuspawner_start_seconds")},
            "From the grant to a workspace that runs, of the last six hours.", SECONDS, "stat", 6,
        ),
        Panel(
            "Waiting, by kind", {"{{kind}}": f"sum by (kind) (gpuspawner_queue_length{{{HERE}}})"},
            "Workspaces that wait for a GPU of this kind.", form="areas",
        ),
        Panel(
            "Free while somebody waits for the kind",
            {"{{kind}}": f"{gpus('free', ' by (kind) ')} and sum by (kind) (gpuspawner_queue_length{{{HERE}}}) > 0"},
            "GPUs kept for those who need several at once, or that a rule does not give. The queue's page says which.",
        ),
        Panel(
            "Waits", {
                "half": quantile(0.5, "gpuspawner_queue_wait_seconds"),
                "9 of 10": quantile(0.9, "gpuspawner_queue_wait_seconds"),
            },
            "Seconds in the queue of those who were granted a GPU, over six hours.", SECONDS,
        ),
        Panel(
            "Error of estimates", {
                "half": quantile(0.5, "gpuspawner_queue_estimate_error_seconds"),
                "9 of 10": quantile(0.9, "gpuspawner_queue_estimate_error_seconds"),
            },
            "How far the start was from the likely time that people were told, over six hours.", SECONDS,
        ),
    ),
)  # fmt: skip
WASTE = Dashboard(
    "waste",
    "gpuspawner: waste and reclaim",
    (
        Panel(
            "GPU hours allocated but idle, last day",
            {"": f'sum(avg_over_time(gpuspawner_gpus{{{HERE}, state="idle"}}[1d])) * 24'},
            "The average of what was scraped in the last day, times 24 hours.", GPU_HOURS, "stat", 8,
        ),
        Panel(
            "GPU hours active, last day",
            {"": f'sum(avg_over_time(gpuspawner_gpus{{{HERE}, state="busy"}}[1d])) * 24'},
            "The average of what was scraped in the last day, times 24 hours.", GPU_HOURS, "stat", 8,
        ),
        Panel(
            "Reclaimed, last day",
            {"": f'sum(increase(gpuspawner_ends_total{{{HERE}, reason=~"idle|nobody came"}}[1d]))'},
            "Workspaces that ended as idle, or because nobody came to them.", form="stat", columns=8,
        ),
        Panel(
            "Allocated but idle, by kind", {"{{kind}}": gpus("idle", " by (kind) ")},
            "GPUs that nobody computes on, and nobody else can have.", form="areas",
        ),
        Panel(
            "What samples proved, in an hour",
            {"{{result}}": f"sum by (result) (increase(gpuspawner_samples_total{{{HERE}}}[1h]))"},
            "A workspace whose samples prove nothing is never reclaimed as idle.", form="areas",
        ),
        Panel(
            "What came of warnings of idleness, in a day",
            {"{{outcome}}": f'sum by (outcome) (increase(gpuspawner_warnings_total{{{HERE}, reason="idle"}}[1d]))'},
            "Ended, kept by its user, used again, or ended for another reason.", form="areas",
        ),
    ),
)  # fmt: skip
TEAMS = Dashboard(
    "teams",
    "gpuspawner: teams and quotas",
    (
        Panel(
            "GPU hours a day, by team",
            {"{{team}}": f"sum by (team) (increase(gpuspawner_lease_gpu_seconds_total{{{HERE}}}[1d])) / 3600"},
            "GPU hours allocated in the day before each point.", GPU_HOURS, "areas", 24,
        ),
        Panel(
            "Of them active",
            {
                "{{team}}": (
                    f'sum by (team) (increase(gpuspawner_lease_gpu_seconds_total{{{HERE}, state="active"}}[1d]))'
                    f" / sum by (team) (increase(gpuspawner_lease_gpu_seconds_total{{{HERE}}}[1d]) > 0)"
                )
            },
            "Share of the allocated GPU hours in which the workspace computed.", RATIO,
        ),
        Panel(
            "Used of each quota",
            {"{{quota}}: {{limit}}": f"max by (quota, limit) (gpuspawner_quota_used_ratio{{{HERE}}})"},
            "Of its bound; of a quota of each user, the one who uses most.", RATIO,
        ),
    ),
)  # fmt: skip
SERVICE = Dashboard(
    "service",
    "gpuspawner: the service",
    (
        Panel("Scraped", {"": f"min(up{{{HERE}}})"}, "1 while the service answers.", form="stat", columns=4),
        Panel(
            "Hub answers", {"": f"min(gpuspawner_hub_reachable{{{HERE}}})"},
            "0 while the hub is away: who runs goes on, who waits waits.", form="stat", columns=4,
        ),
        Panel(
            "Store takes writes", {"": f"min(gpuspawner_store_writable{{{HERE}}})"},
            "0 while the database is away, locked or full: nothing is granted.", form="stat", columns=4,
        ),
        Panel(
            "Catalog as written", {"": f"min(gpuspawner_catalog_reload_success{{{HERE}}})"},
            "0 while the file holds what cannot be used; the last good one is in force.", form="stat", columns=4,
        ),
        Panel(
            "Age of the view of the GPUs", {"": f"max(gpuspawner_fleet_age_seconds{{{HERE}}})"},
            "It is renewed every few seconds.", SECONDS, "stat", 4,
        ),
        Panel(
            "Oldest sample", {"": f"max(gpuspawner_sample_age_seconds{{{HERE}}})"},
            "Of the workspace that was sampled longest ago.", SECONDS, "stat", 4,
        ),
        Panel(
            "Processor", {"cores": f"sum(rate(process_cpu_seconds_total{{{HERE}}}[5m]))"},
            "Cores that the service uses. It works in one thread for the most part: near 1, pages become slow.",
        ),
        Panel(
            "Memory", {"resident": f"sum(process_resident_memory_bytes{{{HERE}}})"}, "Of the service's process.", BYTES
        ),
        Panel(
            "Messages an hour",
            {"{{result}}": f"sum by (result) (increase(gpuspawner_notifications_total{{{HERE}}}[1h]))"},
            "Mail, chat and webhooks: sent, failed, dropped because too many waited, or without an address.",
        ),
        Panel(
            "What did not go as decided, in a day",
            {
                "scheduler: {{reason}}": (
                    f"sum by (reason) (increase(gpuspawner_scheduler_errors_total{{{HERE}}}[1d]))"
                ),
                "found {{found}}": f"sum by (found) (increase(gpuspawner_lease_mismatches_total{{{HERE}}}[1d]))",
            },
            "The scheduler was not seen, did not answer or failed; what ran had no lease, or other GPUs.",
        ),
        Panel(
            "Views' ages", {
                "GPUs": f"max(gpuspawner_fleet_age_seconds{{{HERE}}})",
                "oldest sample": f"max(gpuspawner_sample_age_seconds{{{HERE}}})",
            },
            "What grows here is not seen any more.", SECONDS,
        ),
    ),
)  # fmt: skip
DASHBOARDS = (FLEET, QUEUE, WASTE, TEAMS, SERVICE)
