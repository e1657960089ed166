"""Live leases by id, and immutable views of them in chunks.

Few chunks change between two views. Copying and comparing tens of thousands of leases takes longer than a decision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from gpuspawner.core.leases.lease import Lease

AT_ONCE = 256
"""Maximum number of leases in a chunk: about the number of chunks in a large cluster."""


class Leases(Collection[Lease]):
    """The leases at one instant. Two views that share a chunk hold the same leases in it."""

    def __init__(self, chunks: Mapping[int, tuple[Lease, ...]]) -> None:
        """Hold chunks by number. A number is never used again."""
        self.chunks = chunks

    def __iter__(self) -> Iterator[Lease]:
        """Iterate over all leases in the order in which they came."""
        return chain.from_iterable(self.chunks.values())

    def __len__(self) -> int:
        """Return the number of leases."""
        return sum(map(len, self.chunks.values()))

    def __contains__(self, one: object) -> bool:
        """Return whether a lease is in the view."""
        return any(one in some for some in self.chunks.values())


def changed(before: Collection[Lease], after: Collection[Lease]) -> tuple[list[Lease], list[Lease]]:
    """Return the leases of each that are not in a chunk of both."""
    old, new = _chunks(before), _chunks(after)
    return _without(old, new), _without(new, old)


def _chunks(leases: Collection[Lease]) -> Mapping[int, Collection[Lease]]:
    return leases.chunks if isinstance(leases, Leases) else {0: leases}


def _without(some: Mapping[int, Collection[Lease]], others: Mapping[int, Collection[Lease]]) -> list[Lease]:
    return [lease for number, chunk in some.items() if others.get(number) is not chunk for lease in chunk]


class LiveLeases:
    """Leases by id, in the order in which they came."""

    def __init__(self, leases: Iterable[Lease] = ()) -> None:
        """Hold these leases."""
        self._number: dict[str, int] = {}
        self._chunks: dict[int, dict[str, Lease]] = {}
        self._seen: dict[int, tuple[Lease, ...]] = {}
        self._changed: set[int] = set()
        """The chunks that have changed since the last view."""
        self._came = 0
        for lease in leases:
            self.put(lease)

    def __iter__(self) -> Iterator[Lease]:
        """Iterate over the leases."""
        return iter(self.seen())

    def get(self, name: str) -> Lease | None:
        """Return the lease with an id."""
        number = self._number.get(name)
        return None if number is None else self._chunks[number][name]

    def put(self, lease: Lease) -> None:
        """Add a lease. It replaces the lease with its id."""
        number = self._number.get(lease.id)
        if number is None:
            number = self._number[lease.id] = self._came // AT_ONCE
            self._came += 1
        self._chunks.setdefault(number, {})[lease.id] = lease
        self._changed.add(number)

    def remove(self, name: str) -> None:
        """Remove the lease with an id, if there is one."""
        if (number := self._number.pop(name, None)) is not None:
            del self._chunks[number][name]
            self._changed.add(number)

    def seen(self) -> Leases:
        """Return a view of the leases as they are now."""
        for number in self._changed:
            if some := self._chunks[number]:
                self._seen[number] = tuple(some.values())
            else:
                del self._chunks[number]
                self._seen.pop(number, None)
        self._changed.clear()
        return Leases(dict(self._seen))
