"""The manifests of hub_config, as tests compare them with what is asked for."""

import yaml
from harness.hub import REPO


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
    """Return the same of rights that ``gpuspawner server doctor`` asks for."""
    return {(one.verb, one.resource, one.everywhere, one.group) for one in rights}
