"""Sample rows for the tests of the store: readings, audit entries, a lease with all optional fields."""

from fractions import Fraction

from lease_builders import a_lease, a_request, slots

from gpuspawner.core.events import event_of
from gpuspawner.core.idle.policies import Mode
from gpuspawner.core.idle.verdicts import SampleKind, Streak
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.rules import LatestEnd, LostInterval, Rate
from gpuspawner.service.store import AuditLine, ReadingRow
from gpuspawner.service.store.retention import AgeLimits

NOW = 1_800_000_000.0


def reading(at, percent, gpu="a100-0", lease="one", *, kept=False):
    kind = "unknown" if percent is None else "busy"
    return ReadingRow(lease, at, 60.0, gpu, percent, 1, 2, kind, "because", kept)


def delete_old(store, table, *, now=0.0, usage=0.0):
    """Delete the rows of a table that are too old by these limits."""
    store.retention.delete_old(table, AgeLimits(now, ended=0.0, usage=usage, usage_day="", keys=0.0, messages=0.0))


def line(action="did"):
    return AuditLine(NOW, "one", "alice", "gpuspawner", event_of(action, {}))


FULL_LEASE = a_lease(
    "full",
    Phase.RECLAIMING,
    asked_at=NOW - 3600.0,
    held=slots("a100-0", "a100-1", share="1/3"),
    request=a_request(gpu="half", count=2, cpu_cores=0.5),
    key=Key("hub", "2026-01-01T00:00:00Z", "named"),
    streak=Streak(
        1.5, 2.5, 3.0, 4.5, 90.0, 600.0, 0.5, 60.0, Mode.ENFORCE, (("a100-1", 7200.5),), SampleKind.IDLE, "GPU 0 at 1 %"
    ),
    warned_seconds=(3600.0, 600.0),
    kept_until=NOW,
    sampled_at=NOW,
    reason=ExitReason.IDLE,
    rate=Rate(Fraction(2, 7), Fraction("4.2")),
    latest_end=LatestEnd(NOW, "budget", "ends then", "each-user"),
    fixed_end=LatestEnd(NOW, "hold", "ends then"),
    lost=(LostInterval(NOW, None, "its node", Fraction(1, 3)),),
)
