"""What is an address of the service."""

from __future__ import annotations

from urllib.parse import urlparse


def is_service_address(url: object) -> bool:
    """Tell whether it is http, with a host, and without a path."""
    if not isinstance(url, str):
        return False
    try:
        parts = urlparse(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0 and parts.path in {"", "/"}
    except ValueError:  # a port that is none
        return False
