"""Requests: what makes two of them the same."""

import json
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    "cpu_guarantee_percent": 50.0,
    "memory_guarantee_percent": 50.0,
    "image": "registry.example.org/other",
    "own_image": True,
    "repository": "https://git.example.org/a/b",
    "opens": ("ssh",),
    "team": "vision",
    "substitutes": ("h100",),
    "needs_memory_bytes": 1,
    "needs_compute": "8.0",
    "needs_driver": "570",
    "needs_cuda": "12.8",
    "priority": 1,
    "classes": ("cs231",),
    "tools": ("nlp",),
    "variables": "A=1",
    "script": "make\n",
    "least_lifetime_seconds": 60,
    "topology": "require",
    "place": "cheapest",
    "cluster_order": ("t4",),
}


def test_every_field_is_tried():
    assert set(OTHER) == {field.name for field in fields(a_request())}


@pytest.mark.parametrize("name", sorted(OTHER))
def test_the_digest_tells_requests_apart_by_every_field(name):
    request = a_request()
    assert replace(request).digest == request.digest
    assert replace(request, **{name: OTHER[name]}).digest != request.digest


@given(st.integers(1, 64_000), st.integers(1, 2**45), st.floats(1, 100))
def test_the_guarantee_is_never_below_the_percentage_nor_above_the_request(thousandths, size_bytes, percent):
    request = a_request(cpu_cores=thousandths / 1000, memory_bytes=size_bytes)
    assert (request.guaranteed_cpu_cores, request.guaranteed_memory_bytes) == (thousandths / 1000, size_bytes)
    part = replace(request, cpu_guarantee_percent=percent, memory_guarantee_percent=percent)
    assert thousandths * percent / 100 - 1e-3 <= 1000 * part.guaranteed_cpu_cores <= thousandths
    assert size_bytes * percent / 100 - 1 <= part.guaranteed_memory_bytes <= size_bytes


def test_a_request_comes_back_from_json_as_it_was():
    for request in (a_request(), replace(a_request(), **OTHER)):
        assert type(request).from_json(json.loads(json.dumps(asdict(request)))) == request
    older = {name: value for name, value in asdict(a_request()).items() if name not in {"image", "opens"}}
    assert (type(a_request()).from_json(older).image, type(a_request()).from_json(older).opens) == (None, None)
