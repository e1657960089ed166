"""The port of the hub's service, before the hub starts: another hub's service must never be taken for its own."""

from __future__ import annotations

from pathlib import Path

from gpuspawner.backends.ports import find_listener, first_free_after, is_free


def refuse_taken(port: int, host: str, data: Path) -> None:
    """Check that this hub's service, which serves ``data``, will have its port.

    An older service of this hub, which a killed one left, is no reason to refuse: it sees that, and ends.

    Raises:
        SystemExit: another process listens there, with who it is and which port is free.
    """
    if is_free(port, host):
        return
    holder = find_listener(port)
    if holder.data != data and not is_free(port, host):  # once more: it may have ended just now
        raise SystemExit(
            f"gpuspawner: port {port}, which this hub's GPU service needs, is taken by {holder.words}. End that one, "
            f"or give this hub another: configure(c, ..., port={first_free_after(port, host)})."
        )
