"""Every bad value is the same 4xx, with the value, the bound and the remedy; and the next plain start works."""

import html
import json

import pytest
import requests
from harness.hub import RealHub, eventually

from gpuspawner.core.errors import label_of

HUGE = "9" * 400
FLOOD = "x" * 2_000_000

COUNT = "1 to 8. Write a whole number, for example 8."
FEWER = "1 to 8. Ask for 1 to 8 A100."
GPU = "a100, half, any, none. Choose one of them: Lab offers no other."
TEMPLATE = "lab, cpu. Choose one of them."
MEMORY = "1 GiB to 8 GiB. Write a size with its unit, for example 1 GiB."
LESS = "1 GiB to 8 GiB. Write for example 1 GiB."
MORE = "1 GiB to 8 GiB. Write for example 1 GiB."
CPU = "1 to 4. Write a number of cores, for example 1."
CORES = "1 to 4. Write for example 1."
LIFETIME = "1 s to 24 h. Write a time with its unit, for example 8 h."
SHORTER = "1 s to 24 h. Write for example 8 h."

BAD = [  # field, value in JSON, how a message quotes it, what is allowed and what to do
    pytest.param("count", "true", "True", COUNT, id="count true"),
    pytest.param("count", "[2, 3]", "[2, 3]", COUNT, id="count a list"),
    pytest.param("count", "{}", "{}", COUNT, id="count an object"),
    pytest.param("count", "NaN", "nan", COUNT, id="count NaN"),
    pytest.param("count", "1e309", "inf", COUNT, id="count beyond floats"),
    pytest.param("count", HUGE, "a very large number", COUNT, id="count of 400 digits"),
    pytest.param("count", "-1", "-1", COUNT, id="count negative"),
    pytest.param("count", "0", "0", FEWER, id="count zero"),
    pytest.param("count", "1.5", "1.5", COUNT, id="count a fraction"),
    pytest.param("count", '"\u0663"', "'\u0663'", COUNT, id="count in other digits"),
    pytest.param("count", "9", "9", FEWER, id="count above the bound"),
    pytest.param("gpu", '"h100"', "'h100'", GPU, id="gpu of unknown kind"),
    pytest.param("gpu", "7", "7", GPU, id="gpu a number"),
    pytest.param("gpu", '["a100"]', "['a100']", GPU, id="gpu a list"),
    pytest.param("template", '"lab2"', "'lab2'", TEMPLATE, id="template unknown"),
    pytest.param("template", "{}", "{}", TEMPLATE, id="template an object"),
    pytest.param("memory", '"4Q"', "'4Q'", MEMORY, id="memory of no unit"),
    pytest.param("memory", "false", "False", MEMORY, id="memory false"),
    pytest.param("memory", '"9GiB"', "'9GiB'", LESS, id="memory above the bound"),
    pytest.param("memory", '"64MiB"', "'64MiB'", MORE, id="memory below the bound"),
    pytest.param("cpu", "NaN", "nan", CPU, id="cpu NaN"),
    pytest.param("cpu", "-1e309", "-inf", CPU, id="cpu minus infinity"),
    pytest.param("cpu", "64", "64", CORES, id="cpu above the bound"),
    pytest.param("lifetime", '"forever"', "'forever'", LIFETIME, id="lifetime a word"),
    pytest.param("lifetime", '"25h"', "'25h'", SHORTER, id="lifetime above the bound"),
]
KEYS = [  # options in JSON, the whole message
    pytest.param(
        '{"gpus": 1}',
        "'gpus': You asked for an option that does not exist. Allowed: template, gpu, count, cpu, memory, lifetime, "
        "team, substitutes, gpu_memory, repository, own_image, tools, variables, script. "
        "Did you mean `gpu`?",
        id="unknown key",
    ),
    pytest.param(
        '{"template": "cpu", "gpu": "a100"}',
        "GPU: You asked for 'a100'. Allowed: none. Choose one of them: No GPU offers no other.",
        id="another template's GPU",
    ),
    pytest.param(
        '{"template": "cpu", "count": 1}',
        "GPUs: You asked for 1. Allowed: 0. Choose a GPU, or leave the number out.",
        id="a count without a GPU",
    ),
]
RESERVED = [
    pytest.param(
        {"user_options": {name: "x"}},
        f"{name}: You asked for 'x'. Allowed: template, gpu, count, cpu, memory, lifetime, team, substitutes, "
        "gpu_memory, repository, own_image, tools, variables, script. "
        f"JupyterHub takes {name} for itself; send the options alone, without {name}.",
        id=name,
    )
    for name in ("display_name", "user_options")
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    # A refusal that is slower is answered 202, and told by the next page.
    with RealHub(tmp_path_factory.mktemp("values"), slow_spawn_timeout=5.0) as real:
        yield real


@pytest.fixture(scope="module")
def vera(hub):
    """Her browser's session; she never gets a server here."""
    return hub.login("vera")


@pytest.fixture(scope="module")
def token(hub, vera):
    return hub.api("POST", "/users/vera/tokens", {}).json()["token"]


def by_api(hub, token, text: str) -> tuple[int, str]:
    """Start by the hub's REST API, with a body as it is."""
    url, headers = f"{hub.url}/hub/api/users/vera/server", {"Authorization": f"token {token}"}
    answer = requests.post(url, data=text.encode(), headers=headers, timeout=30)
    return answer.status_code, answer.json()["message"]


def by_check(hub, token, text: str) -> tuple[int, str]:
    """Ask the service what Start would do."""
    url, headers = f"{hub.url}/services/gpu/api/v1/check", {"Authorization": f"token {token}"}
    answer = requests.post(url, data=text.encode(), headers=headers, timeout=30)
    return answer.status_code, answer.json()["error"]["message"]


def page_text(answer: requests.Response) -> str:
    return html.unescape(answer.content.decode())  # the hub names no charset


IN_MAKE_TEST = {"count NaN", "count of 400 digits", "gpu a list", "memory above the bound", "lifetime a word"}
"""One for each way in which a value can be bad; the catalog's tests have all of them."""
SOME_BAD = [
    one if one.id in IN_MAKE_TEST else pytest.param(*one.values, id=one.id, marks=pytest.mark.slow) for one in BAD
]


@pytest.mark.parametrize(("field", "value", "shown", "right"), SOME_BAD)
def test_a_bad_value_is_refused_alike_by_api_check_and_form(hub, vera, token, field, value, shown, right):
    text = f'{{"{field}": {value}}}'
    message = f"{label_of(field)}: You asked for {shown}. Allowed: {right}"
    assert by_api(hub, token, text) == (400, message)
    assert by_check(hub, token, text) == (400, message)
    written = value.strip('"')  # in a form all is text
    sent = hub.submit(vera, "vera", **{field: written})
    assert sent.status_code == 400
    quoted = f"'{written}'" if len(written) < 59 else f"'{written[:58]}…"
    assert f"{label_of(field)}: You asked for {quoted}. Allowed: {right}" in page_text(sent)
    assert hub.server("vera") is None


@pytest.mark.parametrize("options", [{"memory": FLOOD}, {"count": "7" * 70_000}], ids=["2 MB", "70 kB"])
def test_an_oversized_value_is_refused_alike_by_api_check_and_form(hub, vera, token, options):
    message = "request: You asked for more than 65,536 bytes. Allowed: at most 65,536 bytes. Shorten its longest value."
    text = json.dumps(options)
    assert by_api(hub, token, text) == by_check(hub, token, text) == (413, message)
    assert message in page_text(hub.submit(vera, "vera", **options))
    assert hub.server("vera") is None


@pytest.mark.parametrize(("text", "message"), KEYS)
def test_options_that_do_not_fit_together_are_refused_alike(hub, vera, token, text, message):
    assert by_api(hub, token, text) == (400, message)
    assert by_check(hub, token, text) == (400, message)
    fields = {key: str(value) for key, value in json.loads(text).items()}
    sent = hub.submit(vera, "vera", **fields)
    assert sent.status_code == 400
    assert message.replace("asked for 1.", "asked for '1'.") in page_text(sent)


@pytest.mark.parametrize(("body", "message"), RESERVED)
def test_names_that_the_hub_takes_for_itself_are_refused(hub, vera, token, body, message):
    assert by_api(hub, token, json.dumps(body)) == (400, message)
    assert by_check(hub, token, json.dumps(body["user_options"])) == (400, message)
    assert hub.submit(vera, "vera", **body["user_options"]).status_code == 400


@pytest.mark.parametrize("text", ["[2, 3]", '"a100"', "17", '{"user_options": [1]}', '{"user_options": 5}', "{"])
def test_options_that_are_not_an_object_are_refused(hub, token, text):
    url, headers = f"{hub.url}/hub/api/users/vera/server", {"Authorization": f"token {token}"}
    assert requests.post(url, data=text, headers=headers, timeout=30).status_code == 400


def test_two_values_of_one_field_and_a_file_are_refused(hub, vera):
    two = hub.submit(vera, "vera", lifetime="1h", count="1")
    assert two.status_code == 302, "the same form without a second value starts"
    hub.until("vera", "running")
    hub.stop("vera")
    eventually(lambda: not hub.workspaces(), what="it has ended")
    page = vera.get(f"{hub.url}/hub/spawn/vera", timeout=20)
    action = html.unescape(page.text.split('id="spawn_form"')[1].split('action="')[1].split('"')[0])
    for parts in ([("count", (None, "1")), ("count", (None, "2"))], [("memory", ("m.txt", b"x"))]):
        assert vera.post(f"{hub.url}{action}", files=parts, timeout=20).status_code == 400


@pytest.mark.parametrize(
    ("text", "status"),
    [
        pytest.param('{"count": NaN}', 400, id="NaN"),
        pytest.param(f'{{"memory": "{FLOOD}"}}', 413, id="2 MB"),
        pytest.param('{"gpus": {"a": [1]}}', 400, id="an unknown key"),
    ],
)
def test_after_a_bad_value_the_next_plain_start_works(hub, vera, token, text, status):
    assert by_api(hub, token, text)[0] == status
    assert FLOOD[:100] not in hub.api("GET", "/users/vera?include_stopped_servers").text
    assert hub.begin("vera").status_code in {201, 202}
    lease = hub.until("vera", "running")
    assert (lease["options"], lease["request"]["count"]) == ({}, 1)
    hub.stop("vera")
    eventually(lambda: not hub.workspaces(), what="it has ended")


def test_none_of_it_was_an_error_of_the_hubs_or_the_services(hub):
    lines = hub.log.read_text().splitlines()
    own = [line for line in lines if "Couldn't parse JSON" not in line]  # the hub's own word for a torn body
    assert [line[:300] for line in own if "] 500 " in line or " 500 POST" in line] == []
    assert len([line for line in lines if "Traceback" in line]) == len(lines) - len(own)
    told = [line for line in lines if "Not starting vera's server" in line]
    assert told, "the hub tells refusals in its log"
    assert [line[:300] for line in told if not line.startswith("[I ")] == [], "they are no errors"
    assert max(map(len, lines)) < 5000, "no value floods the log"
