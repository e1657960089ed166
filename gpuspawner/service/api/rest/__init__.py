"""How a route says what it takes and answers, and what follows from it: checks, the OpenAPI document, its page.

Belongs here: what holds for every route. Never here: what one route does, which stands in its handler.
"""

from gpuspawner.service.api.rest.models import Answer, Body, PageQuery, Query
from gpuspawner.service.api.rest.route import Route, route

__all__ = ["Answer", "Body", "PageQuery", "Query", "Route", "route"]
