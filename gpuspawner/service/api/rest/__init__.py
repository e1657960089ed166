"""Route declarations, and what is derived from them: checks, the OpenAPI document and its page.

Belongs here: what holds for every route. Never here: the work of one route, which its handler does.
"""

from gpuspawner.service.api.rest.models import Answer, Body, PageQuery, Query

__all__ = ["Answer", "Body", "PageQuery", "Query"]
