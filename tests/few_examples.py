"""Requests that schemathesis makes of an OpenAPI document: right ones and wrong ones, the same ones each time."""

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


def statuses_of_any_request(document, drawn, send):
    """Send some requests for each operation and check the answers. Return the statuses that came.

    ``send`` is called with the request, its mode and its other drawn values, and returns the response.
    """
    statuses = set()
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        for mode in (POSITIVE, NEGATIVE):
            _try(found.ok(), mode, drawn, send, statuses)
    return statuses


def _try(operation, mode, drawn, send, statuses):
    @settings(
        max_examples=settings().max_examples // 8,  # 3 in make test, 12 in make test-all
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(mode), drawn)
    def try_one(case, beside):
        response = send(case, mode, *beside)
        case.validate_response(response, checks=CHECKS)
        statuses.add(response.status_code)

    try:
        try_one()
    except Unsatisfiable:
        assert mode is NEGATIVE  # nothing of it can be wrong
