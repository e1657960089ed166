"""Claims as a hub sends them, for tests of the reference scheduler and of the client."""

from demo.scheduler.inventory import Inventory
from demo.scheduler.machine import Machine
from demo.scheduler.records import Settings, from_time

NOW = 1_764_088_200.0
TWO_CLUSTERS = """
clusters:
  - {name: far, near: false, price: {a100: 1.0}, nodes: {far-1: {a100: [A, B]}}}
  - {name: near, near: true, price: {a100: 2.0, h100: 4.0, t4: 0.5}, nodes: {n1: {a100: [C]}, n2: {h100: 1, t4: 1}}}
quotas: {vision: 1}
"""


def asking(count=1, kind="a100", *, revision=1, want="wait", at=NOW, **more):
    """Return the body of a claim."""
    return {
        "revision": revision,
        "want": want,
        "not_before": None,
        "ttl_seconds": 600,
        "user": "alice",
        "team": None,
        "kind": kind,
        "count": count,
        "substitutes": [],
        "cpu_cores": 2.0,
        "memory_bytes": 2**32,
        "lifetime_seconds": 3600,
        "asked_at": from_time(at),
        "holds": None,
        "ends_at": None,
        **more,
    }


def holding(state):
    """Return the GPUs of a claim's grant, as the client sends them."""
    grant = state["grant"]
    return {name: grant[name] for name in ("kind", "cluster", "slots")}


class Played(Machine):
    """A machine with one hub. The test moves its clock."""

    def __init__(self, boot="first", text=TWO_CLUSTERS, now=NOW, **settings):
        super().__init__(Inventory.read(text), Settings(**{"settle_seconds": 0, **settings}), now, boot)
        self.now = now

    def wants(self, name, *args, hub="hub", **asked):
        self.put(hub, name, asking(*args, **asked), self.now)
        return self.after(0, name, hub)

    def after(self, seconds, name=None, hub="hub"):
        self.now += seconds
        self.step(self.now)
        return self.state(name, hub) if name else None

    def state(self, name, hub="hub"):
        return next((one for one in self.since(hub, None)[0]["claims"] if one["id"] == name), None)

    def starts(self, name, *args, **asked):
        """Claim GPUs, and take the grant."""
        self.wants(name, *args, **asked)
        return self.confirm("hub", name, asked.get("revision", 1), self.now)
