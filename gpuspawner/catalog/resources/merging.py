"""Merge the catalog's file with the templates, policies and quotas that are custom resources.

The file must be right without the resources, and its entries always stay. A resource that cannot be used is refused.
Its last good version stays in force, and other resources are not affected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuspawner.catalog.document import LARGEST_BYTES, Document, Issue, read_bytes, read_mapping
from gpuspawner.catalog.load import as_sentence, load_document, load_raw
from gpuspawner.catalog.models import Catalog

Spec = Mapping[str, Any]

LARGEST_SPEC_BYTES = 4096
"""The largest resource as JSON. Its status repeats it, and a status has 8 KiB."""


@dataclass(frozen=True)
class Added:
    """An entry that a custom resource adds to the catalog's ``section``, with its ``name``.

    ``created`` is the time of creation, as Kubernetes writes it. ``good`` is the spec that was in force last, or None.
    """

    uid: str
    section: str
    name: str
    spec: Spec
    created: str = ""
    good: Spec | None = field(default=None, compare=False)


@dataclass(frozen=True)
class MergeResult:
    """The result for each resource, by uid: why it is refused, and the spec that is in force."""

    refused: Mapping[str, str] = field(default_factory=dict)
    in_force: Mapping[str, Spec] = field(default_factory=dict)

    def used(self, added: Iterable[Added]) -> tuple[Added, ...]:
        """Return the entries that are in force, with the specs that are in force."""
        return tuple(replace(one, spec=self.in_force[one.uid]) for one in added if one.uid in self.in_force)


def merge(raw: bytes | Document, file: str, added: Iterable[Added]) -> tuple[Catalog, MergeResult]:
    """Return the catalog of a file and the entries that are added to it.

    Raises:
        CatalogError: the file cannot be used, even without the resources.
    """
    catalog = load_raw(raw, file)
    those = {one.uid: one for one in sorted(added, key=lambda one: (one.created, one.uid))}
    if not those or not isinstance(raw, bytes):
        return catalog, MergeResult()
    data = read_bytes(raw).data
    refused = _refused_at_once(those.values(), data)
    trying = {uid: one.spec for uid, one in those.items() if uid not in refused}
    for uid in refused:
        names = {(those[other].section, those[other].name) for other in trying}
        one = those[uid]
        if one.good is not None and not _is_written(one, data) and (one.section, one.name) not in names:
            trying[uid] = one.good
    while True:
        document = read_mapping(_together(data, those, trying))
        found = load_document(document)
        if found is not None:
            return found, MergeResult(refused, trying)
        for uid, issues in _whose(document.issues, those, trying).items():
            refused.setdefault(uid, " ".join(_words(issue, those[uid]) for issue in issues))
            good = those[uid].good
            if good is None or trying[uid] == good:
                del trying[uid]
            else:
                trying[uid] = good


def _refused_at_once(those: Iterable[Added], data: Mapping[str, Any]) -> dict[str, str]:
    """Return why some resources cannot be added, whatever they contain."""
    refused, all_bytes, names = dict[str, str](), 0, set[tuple[str, str]]()
    for one in those:
        size_bytes = len(json.dumps(one.spec).encode())
        all_bytes += size_bytes
        if _is_written(one, data):
            right = f"Give this resource another name, or take {one.name} out of the file."
            refused[one.uid] = (
                f"{one.section}.{one.name}: the catalog's file has one of this name, which stays. {right}"
            )
        elif (one.section, one.name) in names:
            where = f"{one.section}.{one.name}: an older resource of the cluster or of the namespace has this name"
            refused[one.uid] = f"{where}. Give this resource another name, or delete the older one."
        elif size_bytes > LARGEST_SPEC_BYTES:
            refused[one.uid] = f"spec: larger than {LARGEST_SPEC_BYTES // 1024} KiB. Write it in the catalog's file."
        elif all_bytes > LARGEST_BYTES:
            right = "Write some in the catalog's file, or take some away."
            refused[one.uid] = f"spec: all resources together are larger than {LARGEST_BYTES // 1024} KiB. {right}"
        elif "profile" in one.spec:
            right = "Write this template in the catalog's file."
            refused[one.uid] = f"spec.profile: the profiles of the hub are known to it alone. {right}"
        names.add((one.section, one.name))
    return refused


def _is_written(one: Added, data: Mapping[str, Any]) -> bool:
    return one.name in (data.get(one.section) or {})


def _together(data: Mapping[str, Any], those: Mapping[str, Added], trying: Mapping[str, Spec]) -> dict[str, Any]:
    """Return the entries of the catalog's file, with those of the custom resources in ``trying`` after them."""
    found = dict(data)
    for uid, spec in trying.items():
        one = those[uid]
        found[one.section] = {**(found.get(one.section) or {}), one.name: spec}
    return found


def _whose(issues: Iterable[Issue], those: Mapping[str, Added], trying: Mapping[str, Spec]) -> dict[str, list[Issue]]:
    """Return the issues by the uid of their resource. If no resource has an issue, all belong to the youngest one."""
    by_place = {(those[uid].section, those[uid].name): uid for uid in trying}
    found: dict[str, list[Issue]] = {}
    for issue in issues:
        if len(issue.loc) > 1 and (uid := by_place.get((str(issue.loc[0]), str(issue.loc[1])))) is not None:
            found.setdefault(uid, []).append(issue)
    return found or {list(trying)[-1]: list(issues)}


def _words(issue: Issue, one: Added) -> str:
    """Return an issue as ``gpuspawner server check`` says it, with the paths of the resource."""
    loc = ("spec", *issue.loc[2:]) if issue.loc[:2] == (one.section, one.name) else issue.loc
    return f"{'.'.join(map(str, loc))}: {issue.wrong}. {as_sentence(issue.right)}"
