"""The columns of each table name fields that the API's own document has, and the report has the console's titles."""

import pytest

from gpuspawner.cli import account, calendar, quotas, workspaces
from gpuspawner.cli.admin import actions, announce, preempt, reports, restrictions
from gpuspawner.service.api.routes import document_of_all
from gpuspawner.service.usage.report import AMOUNTS, COST

DOCUMENT = document_of_all()
SCHEMAS = DOCUMENT["components"]["schemas"]
TABLES = {
    "GET /workspaces": ("workspaces", workspaces.COLUMNS),
    "GET /queue": ("queue", quotas.QUEUE_COLUMNS),
    "GET /offers": ("offers", quotas.OFFER_COLUMNS),
    "GET /usage": ("rows", (*quotas.USAGE_COLUMNS, quotas.COST_COLUMN)),
    "GET /ready": ("ready", calendar.SCHEDULE_COLUMNS),
    "GET /secrets": ("secrets", account.SECRET_COLUMNS),
    "GET /tokens": ("tokens", account.TOKEN_COLUMNS),
    "GET /quota-grants": ("grants", quotas.GRANT_COLUMNS),
    "GET /quota-requests": ("requests", quotas.REQUEST_COLUMNS),
    "GET /preemptions": ("preemptions", preempt.COLUMNS),
    "GET /preemptions/{claim}": ("victims", preempt.VICTIM_COLUMNS),
    "GET /messages": ("messages", announce.COLUMNS),
    "GET /admin/restrictions": ("restrictions", restrictions.COLUMNS),
    "GET /admin/audit": ("audit", reports.AUDIT_COLUMNS),
    "POST /admin/workspaces/stop": ("affected", actions.DONE_COLUMNS),
}


def fields_of(schema):
    return SCHEMAS[schema["$ref"].rpartition("/")[2]]["properties"]


@pytest.mark.parametrize("route", TABLES)
def test_columns_name_fields_of_the_answer(route):
    method, path = route.split()
    name, columns = TABLES[route]
    operation = DOCUMENT["paths"][f"/api/v1{path}"][method.lower()]
    answer = fields_of(operation["responses"]["200"]["content"]["application/json"]["schema"])
    known = {*answer, *fields_of(answer[name]["items"])}
    asked = {field for column in columns for field in column.fields}
    assert asked
    assert asked <= known


def test_the_report_has_the_columns_of_the_console_s_page():
    assert [(column.fields, column.title) for column in (*reports.REPORT_COLUMNS, reports.REPORT_COST)] == [
        ((column.name,), column.title.upper()) for column in (*AMOUNTS, COST)
    ]
