"""What devices have that several take from, and for how many more it lasts: counters, shared capacity. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuspawner.backends.kubernetes.dra.models import Counters, Device, DeviceName, Shared

Key = tuple[str, ...]
"""(driver, pool, counter set, counter), or (driver, pool, device, "", capacity)."""


@dataclass(frozen=True)
class Left:
    """What is left, by key."""

    amounts: Mapping[Key, int] = field(default_factory=dict)

    def with_sets(self, driver: str, pool: str, sets: Iterable[Counters]) -> Left:
        """Return it with what these counter sets of a pool have."""
        found: dict[Key, int] = {(driver, pool, one.name, name): amount for one in sets for name, amount in one.amounts}
        return Left({**self.amounts, **found})

    def with_devices(self, devices: Iterable[Device]) -> Left:
        """Return it with what shared devices have."""
        found: dict[Key, int] = {
            (*device.name, "", name): shared.amount
            for device in devices
            if device.is_shared
            for (_, name), shared in device.capacity
        }
        return Left({**self.amounts, **found})

    def less(self, taken: Mapping[Key, int]) -> Left:
        """Return what is left when that is taken."""
        return replace(self, amounts={**self.amounts, **{key: self.amounts.get(key, 0) - taken[key] for key in taken}})

    def has(self, taken: Mapping[Key, int]) -> bool:
        """Whether that can be taken."""
        return all(self.amounts.get(key, 0) >= amount for key, amount in taken.items())


def counters_of(device: Device) -> dict[Key, int]:
    """Return what a device takes of its pool's counters once somebody has it."""
    driver, pool, _ = device.name
    return {(driver, pool, one.name, counter): amount for one in device.takes for counter, amount in one.amounts}


def shares_of(device: Device, consumed: Iterable[tuple[str, int]]) -> dict[Key, int]:
    """Return what one claim takes of a shared device."""
    return {(*device.name, "", key.rpartition("/")[2]): amount for key, amount in consumed}


def at_most(devices: Sequence[Device], left: Left, need: Mapping[str, int], held: Collection[DeviceName] = ()) -> int:
    """Return how many units could be had at once, one after the other in the order of the devices.

    Of a device that is not shared, one; of a shared one, as often as what one takes is left of everything. What takes
    nothing at all of a shared device has no end, and is counted once. The counters of what is ``held`` are taken.
    """
    count = 0
    for device in devices:
        counters = {} if device.name in held else counters_of(device)
        if not left.has(counters):
            continue
        left = left.less(counters)
        if not device.is_shared:
            count += 1
            continue
        capacity = {name: shared for (_, name), shared in device.capacity}
        one = {name: _rounded(need.get(name), shared) for name, shared in capacity.items()}
        keys = {(*device.name, "", name): amount for name, amount in one.items() if amount}
        count += max(0, min((left.amounts.get(key, 0) // amount for key, amount in keys.items()), default=1))
    return count


def _rounded(asked: int | None, shared: Shared) -> int:
    """Return what the scheduler takes: the default of the driver where nothing is asked, else up to its next step."""
    if asked is None:
        return shared.amount if shared.default is None else shared.default
    amount = max(asked, shared.least or 0)
    if not shared.step:
        return amount
    beyond = amount - (shared.least or 0)
    return (shared.least or 0) + -(-beyond // shared.step) * shared.step
