"""Declarations of routes, the base classes of their models, idempotency keys, and the OpenAPI document.

Nothing here belongs to one route alone.
"""

from gpuspawner.service.api.rest.models import Answer, Body, PageQuery, Query

__all__ = ["Answer", "Body", "PageQuery", "Query"]
