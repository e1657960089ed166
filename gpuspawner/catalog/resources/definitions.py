"""The kinds of custom resources with their schemas, and the policy for who may write requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from gpuspawner.catalog.keys import keys_of, schema_of
from gpuspawner.catalog.quota_models import QuotaLimits
from gpuspawner.catalog.requests.start_options import StartOptions
from gpuspawner.catalog.template_models import Template
from gpuspawner.core.fields import SchemaDefault, section, text_reader
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.text_fields import GroupName

Schema = dict[str, Any]


def _text(description: str, longest: int = 300) -> Schema:
    return {"type": "string", "maxLength": longest, "description": description}


def _number(description: str) -> Schema:
    return {"type": "integer", "format": "int64", "description": description}


CONDITIONS: Schema = {
    "type": "array",
    "description": "The conditions of the resource.",
    "maxItems": 8,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": _text("The type of the condition.", 63),
            "status": {
                "type": "string",
                "enum": ["True", "False", "Unknown"],
                "description": "Does the condition hold?",
            },
            "observedGeneration": _number("The generation of the resource that the condition describes."),
            "lastTransitionTime": {"type": "string", "format": "date-time", "description": "Time of the last change."},
            "reason": _text("Why, in one word.", 63),
            "message": _text("Why, in a sentence.", 1000),
        },
    },
}
OBSERVED = {
    "observedGeneration": _number("The generation of the resource that the service has seen."),
    "conditions": CONDITIONS,
}
OF_REQUEST: Schema = {
    "type": "object",
    "description": "The state of the workspace. Only the service writes it.",
    "properties": {
        **OBSERVED,
        "phase": _text(
            "Pending, Refused, Scheduled, Queued, Starting, Running, Reclaiming, Preempting, Stopping or Ended.", 20
        ),
        "reason": _text("The reason, in a few words.", 60),
        "message": _text("The reason, in full.", 1000),
        "lease": _text("The ID of the workspace on pages and in the API.", 64),
        "page": _text("The address of its page. Absent if the service does not know the hub's public address.", 2000),
        "position": _number("The position in the queue, if it waits."),
        "allocation": {
            "type": "object",
            "description": "The GPUs of the workspace.",
            "properties": {
                "summary": _text("Count and kind, for example 2 x a100.", 100),
                "kind": _text("The GPU kind.", 63),
                "count": _number("The number of GPUs."),
                "node": _text("The node.", 253),
                "gpus": {
                    "type": "array",
                    "description": "The GPUs, if they are known, at most 32.",
                    "maxItems": 32,
                    "items": {"type": "string", "maxLength": 100},
                },
            },
        },
        "utilizationPercent": _number("The last utilization of the GPU with the highest value."),
        "idleSeconds": _number("How long its GPUs have been known idle."),
        "endsAt": {"type": "string", "format": "date-time", "description": "The end of its run time."},
        "readyAt": {"type": "string", "format": "date-time", "description": "When it should be ready next."},
        "measuredAt": {
            "type": "string",
            "format": "date-time",
            "description": "Time of position, utilizationPercent and idleSeconds, which change at most once a minute.",
        },
    },
}
OF_ENTRY: Schema = {
    "type": "object",
    "description": "Whether the entry is in force. Only the service writes it.",
    "properties": {
        **OBSERVED,
        "phase": _text("InForce or Refused.", 20),
        "reason": _text("The reason, in a few words.", 60),
        "message": _text("The problem, in the words of `gpuspawner server check`.", 1000),
        "inForce": {
            "type": "object",
            "description": "The spec in force. If the spec is refused, this is the last good one.",
            "x-kubernetes-preserve-unknown-fields": True,
            "x-kubernetes-map-type": "atomic",
        },
    },
}
OF_CLUSTER_ENTRY: Schema = {
    "type": "object",
    "description": "Whether the entry is in force for each hub. Only the services write it.",
    "properties": {
        "hubs": {
            "type": "object",
            "description": "The status for each hub, by the namespace of its service.",
            "additionalProperties": OF_ENTRY,
        }
    },
}


API_GROUP = "gpuspawner.io"
API_VERSION = "v1alpha1"
REQUESTS = "devgpuvmrequests"
USERS = "devgpuvmusers"
"""A resource without objects. An account that may ``use`` it for a user's name may request workspaces for that user."""
POLICY = f"{REQUESTS}.{API_GROUP}"
"""The name of the ValidatingAdmissionPolicy, and of its binding."""
FINGERPRINT = f"{API_GROUP}/schema"
"""The annotation with the version of the schema."""
LONGEST_SERVER = 255
"""Characters in the name of a server: as many as JupyterHub 5 stores. A start allows fewer."""


@dataclass(frozen=True)
class ScheduleSpec:
    """When the workspace should be ready, in the catalog's time zone."""

    __pydantic_config__ = section()
    time: Annotated[str, text_reader(5)]
    """The time of day, for example "8:00"."""
    days: Annotated[str, text_reader(100), SchemaDefault] = "weekdays"
    """Days of the week: weekdays, weekend, daily, or a list like "mon, wed". Default: weekdays."""


@dataclass(frozen=True, kw_only=True)
class RequestSpec(StartOptions):
    """The workspace that is requested. The template decides about each key that is left out."""

    __pydantic_config__ = section()
    user: GroupName
    """The user of the workspace, by the name in the hub. Required."""
    server: Annotated[str, text_reader(LONGEST_SERVER), SchemaDefault] = ""
    """The name of the workspace. Default: empty, for the workspace without a name."""
    ready_at: ScheduleSpec | None = None
    """Days and a time at which the workspace should be ready. It is requested early enough on each of these days. The
    request stays when its workspace has ended."""


FIXED = tuple(name for name in keys_of(RequestSpec) if name != "lifetime")
"""Keys that cannot change after a request is created. A different workspace needs a new request."""

Rule = dict[str, str]


@dataclass(frozen=True)
class Kind:
    """One kind of custom resource: its names, its schema, and the columns of a list."""

    name: str
    short: str
    model: type
    status: Mapping[str, Any]
    columns: Mapping[str, str]
    """The columns of a list, with the path of each value. All are text."""
    about: str
    rules: Sequence[Rule] = ()
    section: str = ""
    """The section of the catalog to which this kind adds an entry, or ""."""
    cluster_wide: bool = False
    """Whether its objects are in no namespace and apply to each hub of the cluster."""

    @property
    def plural(self) -> str:
        """As paths and kubectl have it."""
        return f"{self.name.lower()}s" if not self.name.endswith("y") else f"{self.name.lower()[:-1]}ies"


def _rule(rule: str, message: str, path: str = "") -> Rule:
    return {"rule": rule, "message": message} | ({"fieldPath": f".{path}"} if path else {})


def _stays(name: str) -> Rule:
    rule = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
    message = f"{name} cannot be changed: delete this request, and make another one"
    return {**_rule(rule, message, name), "reason": "FieldValueForbidden"}


ENTRY_COLUMNS = {"Phase": ".status.phase", "Reason": ".status.reason"}
KINDS = (
    Kind(
        "DevGPUVMRequest",
        "gvm",
        RequestSpec,
        OF_REQUEST,
        {
            "User": ".spec.user",
            "Phase": ".status.phase",
            "GPU": ".status.allocation.summary",
            "Ends": ".status.endsAt",
            "Reason": ".status.reason",
        },
        "A workspace of a user of the hub. Applying it starts a server of the hub, deleting it stops that.",
        (
            *(_stays(name) for name in FIXED),
            _rule(
                "!has(self.gpu) || self.gpu != 'none' || !has(self.count) || self.count == 0",
                "gpu is none, so count must be 0 or left out",
                "count",
            ),
            _rule("!self.server.contains('/')", "server is the name of a workspace, without /", "server"),
        ),
    ),
    Kind(
        "DevGPUVMTemplate",
        "gvmt",
        Template,
        OF_ENTRY,
        {"Title": ".spec.title", "Policy": ".spec.policy", **ENTRY_COLUMNS},
        "A kind of workspace for users: an entry of the catalog's templates, with the name of this resource.",
        (_rule("!has(self.opens) || self.opens != ['ssh']", "ssh alone leaves nothing for the browser to open"),),
        section="templates",
    ),
    Kind(
        "DevGPUVMLifecyclePolicy",
        "gvmp",
        LifecyclePolicy,
        OF_ENTRY,
        {"Mode": ".spec.mode", **ENTRY_COLUMNS},
        "A lifecycle policy: an entry of the catalog's policies, with the name of this resource.",
        section="policies",
    ),
    Kind(
        "DevGPUVMQuota",
        "gvmq",
        QuotaLimits,
        OF_ENTRY,
        {"User": ".spec.user", "Group": ".spec.group", "GPUs": ".spec.gpus.hard", **ENTRY_COLUMNS},
        "Limits and budgets: an entry of the catalog's quotas, with the name of this resource.",
        (
            _rule(
                "[has(self.each) || has(self.group), has(self.user), has(self.everybody)].filter(x, x).size() == 1",
                "a quota is for one of: each: user, group, user, everybody: true; each and group go together",
            ),
        ),
        section="quotas",
    ),
    Kind(
        "DevGPUVMClusterLifecyclePolicy",
        "gvmcp",
        LifecyclePolicy,
        OF_CLUSTER_ENTRY,
        {"Mode": ".spec.mode"},
        "A lifecycle policy of each hub of the cluster: an entry of its catalog's policies, with the name of this "
        "resource.",
        section="policies",
        cluster_wide=True,
    ),
)
BY_SECTION = {(kind.section, kind.cluster_wide): kind for kind in KINDS}
"""The kinds by their section of the catalog, and whether their resources are of the whole cluster."""


def definition(kind: Kind) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind."""
    spec = schema_of(kind.model)
    if kind.rules:
        spec["x-kubernetes-validations"] = list(kind.rules)
    schema = {
        "type": "object",
        "description": kind.about,
        "required": ["spec"],
        "properties": {"spec": spec, "status": dict(kind.status)},
    }
    version = {
        "name": API_VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            *({"name": name, "type": "string", "jsonPath": path} for name, path in kind.columns.items()),
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
    }
    names = {
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.name.lower(),
        "shortNames": [kind.short],
        "categories": ["gpuspawner"],
    }
    what = {
        "group": API_GROUP,
        "scope": "Cluster" if kind.cluster_wide else "Namespaced",
        "names": names,
        "versions": [version],
    }
    fingerprint = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{API_GROUP}",
            # Without it helm's uninstall would take every template, policy, quota and request along.
            "annotations": {"helm.sh/resource-policy": "keep", FINGERPRINT: fingerprint},
        },
        "spec": what,
    }


def admission() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the policy by which a request is written only by who may use its user's name, and its binding."""
    whose = "(object != null ? object : oldObject).spec.user"
    # Its controller deletes what is in a namespace that goes, and nothing stops for it.
    going = "request.operation == 'DELETE' && has(namespaceObject.metadata.deletionTimestamp)"
    may = f"authorizer.group('{API_GROUP}').resource('{USERS}').namespace(request.namespace).name({whose})"
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [API_GROUP],
                        "apiVersions": ["*"],
                        "operations": ["CREATE", "UPDATE", "DELETE"],
                        "resources": [REQUESTS],
                    }
                ]
            },
            "validations": [
                {
                    "expression": f"({going}) || {may}.check('use').allowed()",
                    "messageExpression": (
                        f"'you may not ask for workspaces of ' + {whose} + ': that needs the verb use on {USERS}/' + "
                        f"{whose} + ' of {API_GROUP} in namespace ' + request.namespace"
                    ),
                    "message": f"that needs the verb use on {USERS} of {API_GROUP}",
                    "reason": "Forbidden",
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY},
        "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
    }
    return policy, binding


def everything() -> list[dict[str, Any]]:
    """Return all that a cluster needs before it takes custom resources: definitions, policy and binding."""
    return [*(definition(kind) for kind in KINDS), *admission()]
