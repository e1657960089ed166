"""Answers of an API server."""

import json

from kubernetes_asyncio.client import ApiException


def refused(status: int, message: str = "", reason: str = "Because") -> ApiException:
    """Return the client's exception for a refused request."""
    error = ApiException(status=status, reason=reason)
    error.body = json.dumps({"message": message})
    return error
