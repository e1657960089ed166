"""Alerts for administrators: one rule for each problem that does not repair itself, with its meaning and its remedy.

``fires`` and ``rests`` are samples of a test by promtool: the series that make it fire, and those that end it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WARNING, CRITICAL = "warning", "critical"


@dataclass(frozen=True)
class Alert:
    """One rule.

    Args:
        name: in Prometheus' style.
        expression: PromQL; it holds while the alert does.
        minutes: for how long it must hold.
        severity: ``critical`` where people cannot start, or work may be lost; else ``warning``.
        summary: what is the matter, in a sentence; labels as ``{{ $labels.kind }}``.
        remedy: what to do.
        fires: series by name, with the value at which it fires.
        rests: the same, with that at which it does not.
    """

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str
    remedy: str
    fires: dict[str, str]
    rests: dict[str, str]


ALERTS = (
    Alert(
        "GpuspawnerAbsent",
        "absent(gpuspawner_catalog_reload_success)",
        5,
        CRITICAL,
        "No gpuspawner service is scraped.",
        "Workspaces go on, but nothing is granted, warned or stopped. Is the service up, and is its token for metrics "
        "valid? See its log.",
        {"other": "1"},
        {"gpuspawner_catalog_reload_success": "1"},
    ),
    Alert(
        "GpuspawnerStoreNotWritable",
        "gpuspawner_store_writable == 0",
        5,
        CRITICAL,
        "The service's database takes no writes.",
        "Nothing is granted until it does. Is its disk full, or its server away? The administrator's page says why.",
        {"gpuspawner_store_writable": "0"},
        {"gpuspawner_store_writable": "1"},
    ),
    Alert(
        "GpuspawnerHubAway",
        "gpuspawner_hub_reachable == 0",
        10,
        CRITICAL,
        "The service does not reach the hub.",
        "Requests keep waiting. Is the hub up, does its network policy let the service in, and is the service's "
        "token one of the hub's?",
        {"gpuspawner_hub_reachable": "0"},
        {"gpuspawner_hub_reachable": "1"},
    ),
    Alert(
        "GpuspawnerGpusNotSeen",
        "gpuspawner_fleet_age_seconds > 300"
        " or absent(gpuspawner_fleet_age_seconds) unless absent(gpuspawner_catalog_reload_success)",
        5,
        CRITICAL,
        "The GPUs are not seen, or were last seen over five minutes ago.",
        "Nothing is granted on an old view. Does the Kubernetes API answer, and has the service the right to list "
        "nodes and pods? On one machine: does nvidia-smi answer?",
        {"gpuspawner_catalog_reload_success": "1"},
        {"gpuspawner_catalog_reload_success": "1", "gpuspawner_fleet_age_seconds": "5"},
    ),
    Alert(
        "GpuspawnerCatalogNotUsed",
        "gpuspawner_catalog_reload_success == 0",
        10,
        WARNING,
        "The catalog as written cannot be used: the last good one is in force.",
        "Run `gpuspawner server check` on the file; the administrator's page names file and line.",
        {"gpuspawner_catalog_reload_success": "0"},
        {"gpuspawner_catalog_reload_success": "1"},
    ),
    Alert(
        "GpuspawnerNotSampled",
        "gpuspawner_sample_age_seconds > 900",
        10,
        WARNING,
        "A workspace was last sampled {{ $value | humanizeDuration }} ago.",
        "It is not stopped as idle while it is not measured. Run `gpuspawner list` to find it, and "
        "`gpuspawner explain` on it.",
        {"gpuspawner_sample_age_seconds": "1800"},
        {"gpuspawner_sample_age_seconds": "30"},
    ),
    Alert(
        "GpuspawnerSamplesProveNothing",
        'sum(increase(gpuspawner_samples_total{result="unknown"}[1h]))'
        " > 0.5 * sum(increase(gpuspawner_samples_total[1h])) and sum(increase(gpuspawner_samples_total[1h])) > 20",
        30,
        WARNING,
        "More than half of the samples of the last hour prove nothing.",
        "Idle GPUs stay held meanwhile. Does nvidia-smi run inside the workspaces? `gpuspawner explain` quotes what it "
        "said.",
        {'gpuspawner_samples_total{result="unknown"}': "+30", 'gpuspawner_samples_total{result="busy"}': "+1"},
        {'gpuspawner_samples_total{result="unknown"}': "+0", 'gpuspawner_samples_total{result="busy"}': "+30"},
    ),
    Alert(
        "GpuspawnerGpusSuspect",
        'sum by (kind) (gpuspawner_gpus{state="suspect"}) > 0',
        30,
        WARNING,
        "{{ $value }} GPUs of kind {{ $labels.kind }} are not given: they are not healthy.",
        "See the fleet on the administrator's page, and the node's log for Xid errors.",
        {'gpuspawner_gpus{kind="a100", state="suspect"}': "1"},
        {'gpuspawner_gpus{kind="a100", state="suspect"}': "0"},
    ),
    Alert(
        "GpuspawnerFreeWhileWaiting",
        'sum by (kind) (gpuspawner_gpus{state="free"}) >= 8 and sum by (kind) (gpuspawner_queue_length) > 0',
        60,
        WARNING,
        "{{ $value }} GPUs of kind {{ $labels.kind }} were free for an hour while requests waited for one.",
        "The page of the queue says why each request waits: a quota, a reservation, or too few free GPUs on one node.",
        {'gpuspawner_gpus{kind="a100", state="free"}': "9", 'gpuspawner_queue_length{kind="a100"}': "2"},
        {'gpuspawner_gpus{kind="a100", state="free"}': "9", 'gpuspawner_queue_length{kind="a100"}': "0"},
    ),
    Alert(
        "GpuspawnerStartsFail",
        'sum(increase(gpuspawner_ends_total{reason="failed"}[1h])) >= 3',
        10,
        WARNING,
        "{{ $value | humanize }} workspaces failed in the last hour.",
        "Their pages and the audit say why: an image that cannot be pulled, a GPU that fails, a node that is full.",
        {'gpuspawner_ends_total{reason="failed"}': "+1"},
        {'gpuspawner_ends_total{reason="failed"}': "+0"},
    ),
    Alert(
        "GpuspawnerMessagesFail",
        'sum(increase(gpuspawner_notifications_total{result=~"failed|dropped"}[30m])) > 0',
        10,
        WARNING,
        "Messages to people are not delivered.",
        "Warnings are on pages and in JupyterLab all the same. See the service's log for the mail server's answer.",
        {'gpuspawner_notifications_total{result="failed"}': "+1"},
        {'gpuspawner_notifications_total{result="failed"}': "+0"},
    ),
    Alert(
        "GpuspawnerSchedulerFails",
        "sum by (adapter, reason) (increase(gpuspawner_scheduler_errors_total[30m])) >= 3",
        10,
        WARNING,
        "The scheduler {{ $labels.adapter }} failed {{ $value | humanize }} times in 30 min: {{ $labels.reason }}.",
        "Nothing is granted while it fails. The console says since when; the service's log has each error. Is an "
        "external scheduler up, and does it answer as its contract says?",
        {'gpuspawner_scheduler_errors_total{adapter="http", reason="no answer"}': "+1"},
        {'gpuspawner_scheduler_errors_total{adapter="http", reason="no answer"}': "+0"},
    ),
    Alert(
        "GpuspawnerNotAsLeased",
        "sum by (found) (increase(gpuspawner_lease_mismatches_total[1h])) > 0",
        1,
        WARNING,
        "Workspaces did not run as their leases say ({{ $labels.found }}): {{ $value | humanize }} times in an hour.",
        "The audit log names each workspace. Servers without a lease are expected after an adoption or the loss of the "
        "store. Otherwise, servers are started without the service, or moved to other GPUs.",
        {'gpuspawner_lease_mismatches_total{found="elsewhere"}': "+1"},
        {'gpuspawner_lease_mismatches_total{found="elsewhere"}': "+0"},
    ),
)


def rules() -> dict[str, Any]:
    """Return the file of rules that Prometheus reads."""
    return {
        "groups": [
            {
                "name": "gpuspawner",
                "rules": [
                    {
                        "alert": alert.name,
                        "expr": alert.expression,
                        "for": f"{alert.minutes}m",
                        "labels": {"severity": alert.severity},
                        "annotations": {"summary": alert.summary, "description": alert.remedy},
                    }
                    for alert in ALERTS
                ],
            }
        ]
    }
