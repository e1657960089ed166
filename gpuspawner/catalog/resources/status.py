"""The schemas of the status of custom resources. Only the service writes it."""

from __future__ import annotations

from typing import Any

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
