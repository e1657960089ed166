"""Between KubeSpawner's models of the Kubernetes client and plain JSON."""

from __future__ import annotations

from typing import Any

from kubernetes_asyncio.client import models


def written_back(value: Any, before: Any, after: Any, kind: str) -> Any:
    """Return a model that says ``after`` where it said ``before``, all else of it untouched and of the same type.

    An administrator's ``modify_pod_hook`` meets the objects that KubeSpawner itself would have given it.

    Args:
        value: the model, or a part of it: a list, a dict, a plain value, None.
        before: what it says, as JSON of the API.
        after: what it shall say.
        kind: its type as the client writes it: ``V1Pod``, ``list[V1Container]``, ``dict(str, str)``.
    """
    if before == after:
        return value
    names = getattr(value, "attribute_map", None)
    if names is not None:
        for attribute, key in names.items():
            if key in after or key in before:
                now = getattr(value, attribute)
                part = written_back(now, before.get(key), after.get(key), value.openapi_types[attribute])
                setattr(value, attribute, part)
        return value
    if isinstance(value, list) and isinstance(before, list) and isinstance(after, list):
        inner = kind.removeprefix("list[").removesuffix("]")
        if len(after) < len(value):
            return typed(after, kind)
        kept = [written_back(*each, inner) for each in zip(value, before, after[: len(value)], strict=True)]
        return [*kept, *(typed(new, inner) for new in after[len(value) :])]
    return after if isinstance(value, dict) else typed(after, kind)


def typed(data: Any, kind: str) -> Any:
    """Return JSON of the API as the client's model of this type; what is no model stays as it is."""
    if data is None:
        return None
    if kind.startswith("list["):
        return [typed(item, kind.removeprefix("list[").removesuffix("]")) for item in data]
    model = getattr(models, kind, None)
    if model is None or not hasattr(model, "attribute_map"):
        return data
    attributes = {key: attribute for attribute, key in model.attribute_map.items()}
    return model(**{attributes[key]: typed(part, model.openapi_types[attributes[key]]) for key, part in data.items()})
