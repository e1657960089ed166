"""Requests: what makes two of them the same."""

from dataclasses import fields, replace

import pytest
from lease_builders import a_request

OTHER = {
    "user": "bob",
    "template": "other",
    "policy": "night",
    "gpu": "t4",
    "count": 2,
    "cpu_cores": 3.0,
    "memory_bytes": 1,
    "lifetime_seconds": 1,
}


def test_every_field_is_tried():
    assert set(OTHER) == {field.name for field in fields(a_request())}


@pytest.mark.parametrize("name", sorted(OTHER))
def test_the_digest_tells_requests_apart_by_every_field(name):
    request = a_request()
    assert replace(request).digest == request.digest
    assert replace(request, **{name: OTHER[name]}).digest != request.digest
