"""Why the API server takes no pod at all, in words for the person who starts a workspace: a quota, a standard.

Pure: from its answer to words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuspawner.backends.kubernetes.nodes import amount_of
from gpuspawner.spawner.kubernetes.pods.start import short


def refusal(code: int, message: str) -> str:
    """Return why the API server's refusal of a pod is final, in words; "" where asking again may help."""
    if code in {408, 425, 429} or code >= 500:  # noqa: PLR2004 - HTTP's own numbers
        return ""
    if "status unknown for quota" in message:  # new: nothing is counted yet, so everything is refused
        return ""
    cause = short(re.sub(r'^(pods|Pod) "[^"]*" is (forbidden|invalid): ', "", message))
    quota = _quota(message)
    if quota is not None:
        remedy = (
            "Your administrator must raise it, or remove volumes that nobody uses; nothing was charged."
            if message.startswith("persistentvolumeclaims ")
            else "Ask for less, or start when a colleague of the same namespace stops."
            if quota.passes
            else "Ask for less, or ask your administrator to raise it: that is more than all may have together."
        )
        return f"{quota.words} {remedy}"
    if "violates PodSecurity" in message:
        return (
            f"The cluster's security standard refuses this workspace: {cause} "
            "Your administrator must change the hub's KubeSpawner settings or the namespace's standard."
        )
    if code == 404:  # noqa: PLR2004 - HTTP's own number
        return f"Its pod cannot be made: {cause} Your administrator must create it or name another."
    return f"The cluster refuses this workspace: {cause} Your administrator can mend this; nothing was charged."


def shortage(code: int, message: str) -> str:
    """Return which quota leaves a pod no room for now, in words; "" where the API server refuses it for anything else.

    What is asked would fit, were nothing else there. It comes back, as a GPU does: nothing of that is a failure.
    """
    quota = _quota(message) if code == 403 else None  # noqa: PLR2004 - HTTP's own number
    return quota.words if quota is not None and quota.passes else ""


@dataclass(frozen=True)
class _Quota:
    """What the API server says of a quota that a pod would exceed. ``passes``: none of it is more than all may have."""

    words: str
    passes: bool


def _quota(message: str) -> _Quota | None:
    found = re.search(r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)", message)
    if found is None:
        return None
    name, asked, used, limit = found.groups()
    words = (
        f"The cluster's quota {name} leaves no room: {_plain(asked)} asked, {_plain(used)} of {_plain(limit)} in use."
    )
    most = _amounts(limit)
    passes = all(_at_most(amount, most.get(resource)) for resource, amount in _amounts(asked).items())
    return _Quota(words, passes)


def _amounts(quantities: str) -> dict[str, int | None]:
    """Return ``requests.cpu=500m`` as whole numbers by name, None for a quantity that is not understood."""
    parts = (part.partition("=") for part in quantities.split(","))
    return {name: amount_of(name.rpartition(".")[2], quantity) for name, _, quantity in parts}


def _at_most(amount: int | None, most: int | None) -> bool:
    return amount is not None and most is not None and amount <= most


def _plain(quantities: str) -> str:
    """Return ``requests.nvidia.com/gpu=2`` as ``2 nvidia.com/gpu``; several are joined by "and"."""
    parts = (part.partition("=") for part in quantities.split(","))
    named = (f"{value} {name.removeprefix('requests.').removeprefix('limits.')}" for name, _, value in parts)
    return " and ".join(dict.fromkeys(named))
