"""The schemas of what the service tells of a custom resource. It alone writes them."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def _text(description: str, longest: int = 300) -> Schema:
    return {"type": "string", "maxLength": longest, "description": description}


def _number(description: str) -> Schema:
    return {"type": "integer", "format": "int64", "description": description}


CONDITIONS: Schema = {
    "type": "array",
    "description": "What is so, and since when.",
    "maxItems": 8,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": _text("What it is about.", 63),
            "status": {"type": "string", "enum": ["True", "False", "Unknown"], "description": "Whether it is so."},
            "observedGeneration": _number("Which generation of the resource this is about."),
            "lastTransitionTime": {"type": "string", "format": "date-time", "description": "Since when."},
            "reason": _text("Why, in one word.", 63),
            "message": _text("Why, in a sentence.", 1000),
        },
    },
}
OBSERVED = {
    "observedGeneration": _number("The generation of the resource that was last acted on."),
    "conditions": CONDITIONS,
}
OF_REQUEST: Schema = {
    "type": "object",
    "description": "How the workspace is. The service alone writes it.",
    "properties": {
        **OBSERVED,
        "phase": _text("Pending, Refused, Scheduled, Queued, Starting, Running, Idle, Stopping or Ended.", 20),
        "reason": _text("Why it is so, in a few words.", 60),
        "message": _text("Why it is so, in full.", 1000),
        "lease": _text("The id of the workspace, as pages and API have it.", 64),
        "page": _text(
            "The address of its page. Absent where the service does not know the hub's public address.", 2000
        ),
        "position": _number("Its place in the queue, where it waits."),
        "allocation": {
            "type": "object",
            "description": "What it was given.",
            "properties": {
                "summary": _text("Count and kind in words.", 100),
                "kind": _text("The kind of GPU.", 63),
                "count": _number("How many."),
                "node": _text("Where.", 253),
                "gpus": {
                    "type": "array",
                    "description": "Which, where that is known; at most 32 of them.",
                    "maxItems": 32,
                    "items": {"type": "string", "maxLength": 100},
                },
            },
        },
        "utilizationPercent": _number("Of the GPU that is used most, as it was measured last."),
        "idleSeconds": _number("For how long its GPUs are known idle."),
        "endsAt": {"type": "string", "format": "date-time", "description": "When its lifetime ends."},
        "readyAt": {"type": "string", "format": "date-time", "description": "When it is to be ready next."},
        "measuredAt": {
            "type": "string",
            "format": "date-time",
            "description": "When position, utilizationPercent and idleSeconds were written, at most once a minute.",
        },
    },
}
OF_ENTRY: Schema = {
    "type": "object",
    "description": "Whether it is in force. The service alone writes it.",
    "properties": {
        **OBSERVED,
        "phase": _text("InForce or Refused.", 20),
        "reason": _text("Why it is so, in a few words.", 60),
        "message": _text("What is wrong with it, as `gpuspawner server check` says it.", 1000),
        "inForce": {
            "type": "object",
            "description": "What of it is in force: its spec or, where that is refused, the last good one.",
            "x-kubernetes-preserve-unknown-fields": True,
            "x-kubernetes-map-type": "atomic",
        },
    },
}
