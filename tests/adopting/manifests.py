"""Shared by tests of the adoption: manifests of hub_config, API servers with prepared answers, and opened stores."""

import copy

import yaml
from harness.hub import REPO

from gpuspawner.adoption.doctor.findings import Answer
from gpuspawner.adoption.doctor.queue_checks import REVIEWS
from gpuspawner.service.store import Store
from gpuspawner.service.store.database.backup import DATABASE


class PreparedApi:
    """An API server with prepared answers by path, and statuses of paths that it refuses. Other paths do not exist.

    ``missing`` are the rights that the account does not have: (verb, resource).
    """

    def __init__(self, answers):
        self.answers, self.statuses, self.missing, self.groups = answers, {}, set(), set()

    async def ask(self, path, body=None):
        if path == REVIEWS:
            asked = body["spec"]["resourceAttributes"]
            self.groups.add(asked["group"])
            resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
            return Answer(201, {"status": {"allowed": (asked["verb"], resource) not in self.missing}})
        for refused, status in self.statuses.items():
            if path.startswith(refused):
                return Answer(status, {"message": "forbidden"})
        found = self.answers.get(path)
        return Answer(404, {"message": "not found"}) if found is None else Answer(200, copy.deepcopy(found))


def opened(folder):
    """Open the store in a folder."""
    store = Store(f"sqlite:///{folder / DATABASE}")
    store.open()
    return store


def rights_of(manifest):
    """Return (verb, resource, whether in every namespace, API group) of each right that a manifest gives."""
    return {
        (verb, resource, part["kind"] == "ClusterRole", group)
        for part in yaml.safe_load_all((REPO / "hub_config" / manifest).read_text())
        for rule in part.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def asked_for(rights):
    """Return the rights that ``gpuspawner server doctor`` asks for, in the same form."""
    return {(one.verb, one.resource, one.everywhere, one.group) for one in rights}
