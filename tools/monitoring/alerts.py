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
        severity: ``critical`` if users cannot start workspaces or may lose work, otherwise ``warning``.
        summary: the problem in a sentence, with labels as ``{{ $labels.kind }}``.
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
        "Prometheus scrapes no gpuspawner service.",
        "If the service is down, workspaces keep running, but nothing is granted, warned or stopped. Check that the "
        "service runs and that its token for metrics is valid. Its log says more.",
        {"other": "1"},
        {"gpuspawner_catalog_reload_success": "1"},
    ),
    Alert(
        "GpuspawnerStoreNotWritable",
        "gpuspawner_store_writable == 0",
        5,
        CRITICAL,
        "The service cannot write to its database.",
        "Nothing is granted meanwhile. Check its disk space and its server. *Admin, Overview* says why.",
        {"gpuspawner_store_writable": "0"},
        {"gpuspawner_store_writable": "1"},
    ),
    Alert(
        "GpuspawnerHubAway",
        "gpuspawner_hub_reachable == 0",
        10,
        CRITICAL,
        "The service cannot reach the hub.",
        "Requests keep waiting. Check that the hub runs, that its network policy allows the service, and that the hub "
        "knows the service's token.",
        {"gpuspawner_hub_reachable": "0"},
        {"gpuspawner_hub_reachable": "1"},
    ),
    Alert(
        "GpuspawnerGpusNotSeen",
        "gpuspawner_fleet_age_seconds > 300"
        " or absent(gpuspawner_fleet_age_seconds) unless absent(gpuspawner_catalog_reload_success)",
        5,
        CRITICAL,
        "The list of GPUs is missing or older than five minutes.",
        "Nothing is granted on an old list. Check that the Kubernetes API server answers and that the service may list "
        "nodes and pods. On one machine, run nvidia-smi.",
        {"gpuspawner_catalog_reload_success": "1"},
        {"gpuspawner_catalog_reload_success": "1", "gpuspawner_fleet_age_seconds": "5"},
    ),
    Alert(
        "GpuspawnerCatalogNotUsed",
        "gpuspawner_catalog_reload_success == 0",
        10,
        WARNING,
        "The catalog file has errors. The last valid catalog stays in force.",
        "Run `gpuspawner server check` on the file. *Admin, Overview* also names the lines.",
        {"gpuspawner_catalog_reload_success": "0"},
        {"gpuspawner_catalog_reload_success": "1"},
    ),
    Alert(
        "GpuspawnerNotSampled",
        "gpuspawner_sample_age_seconds > 900",
        10,
        WARNING,
        "A workspace was last sampled {{ $value | humanizeDuration }} ago.",
        "While it is not measured, it is not stopped for being idle. Find it with `gpuspawner list`, then run "
        "`gpuspawner explain` with its name.",
        {"gpuspawner_sample_age_seconds": "1800"},
        {"gpuspawner_sample_age_seconds": "30"},
    ),
    Alert(
        "GpuspawnerSamplesProveNothing",
        'sum(increase(gpuspawner_samples_total{result="unknown"}[1h]))'
        " > 0.5 * sum(increase(gpuspawner_samples_total[1h])) and sum(increase(gpuspawner_samples_total[1h])) > 20",
        30,
        WARNING,
        "More than half of the samples of the last hour are unknown.",
        "Idle GPUs stay allocated meanwhile. Check that nvidia-smi runs inside the workspaces. `gpuspawner explain` "
        "quotes its output.",
        {'gpuspawner_samples_total{result="unknown"}': "+30", 'gpuspawner_samples_total{result="busy"}': "+1"},
        {'gpuspawner_samples_total{result="unknown"}': "+0", 'gpuspawner_samples_total{result="busy"}': "+30"},
    ),
    Alert(
        "GpuspawnerGpusSuspect",
        'sum by (kind) (gpuspawner_gpus{state="suspect"}) > 0',
        30,
        WARNING,
        "{{ $value }} GPUs of kind {{ $labels.kind }} are unhealthy and not allocated.",
        "*Admin, GPUs* names them. Look for Xid errors in the log of the node.",
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
        "Mail or chat messages to users are not delivered.",
        "Warnings still appear on pages and in JupyterLab. The log of the service has the answer of the mail server.",
        {'gpuspawner_notifications_total{result="failed"}': "+1"},
        {'gpuspawner_notifications_total{result="failed"}': "+0"},
    ),
    Alert(
        "GpuspawnerSchedulerFails",
        "sum by (adapter, reason) (increase(gpuspawner_scheduler_errors_total[30m])) >= 3",
        10,
        WARNING,
        "The scheduler {{ $labels.adapter }} failed {{ $value | humanize }} times in 30 min: {{ $labels.reason }}.",
        "Nothing is granted while it fails. *Admin, Overview* says since when, and the log of the service has each "
        "error. Check that an external scheduler runs and follows the contract.",
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
