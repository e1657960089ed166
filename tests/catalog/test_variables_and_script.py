"""Variables and a start-up script as options of a start. A refusal does not show the value."""

import pytest

from gpuspawner.catalog import load_catalog, resolve, to_options
from gpuspawner.catalog.requests.start_options import MOST_BYTES, MOST_VARIABLES, RESERVED_NAMES
from gpuspawner.core.errors import RequestRefused
from gpuspawner.spawner.attempts import variables_of
from gpuspawner.workspace.home.own_files import REFUSED

CATALOG = load_catalog({"version": 1, "templates": {"lab": {"environment": {"A": "template", "B": "template"}}}})
SECRET = "s3cret-value"


def test_they_reach_the_workspace_and_come_back_as_options():
    request = resolve(CATALOG, {"variables": "# mine\nA=b c\n\nexport HF_HOME=/x=y\n", "script": "a\tb\r\nc"}, "alice")
    assert (request.variables, request.script) == ("A=b c\nHF_HOME=/x=y", "a\tb\nc\n")
    assert resolve(CATALOG, to_options(request), "alice") == request
    found = variables_of(request, CATALOG.templates["lab"], {}, "")
    assert (found["A"], found["B"], found["HF_HOME"]) == ("b c", "template", "/x=y")
    assert found["GPUSPAWNER_SCRIPT"] == "a\tb\nc\n"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"variables": f"no variable {SECRET}"}, id="no name"),
        pytest.param({"variables": f"PATH={SECRET}"}, id="the path"),
        pytest.param({"variables": f"ld_preload={SECRET}"}, id="a library"),
        pytest.param({"variables": f"A={SECRET}" * MOST_BYTES}, id="too long"),
        pytest.param({"variables": "\n".join(f"A{n}={SECRET}" for n in range(MOST_VARIABLES + 1))}, id="too many"),
        pytest.param({"variables": {"A": SECRET}}, id="no text"),
        pytest.param({"variables": f"A={SECRET}\x1b[2J"}, id="unprintable"),
        pytest.param({"script": SECRET * MOST_BYTES}, id="a long script"),
        pytest.param({"script": f"{SECRET}\0"}, id="a script with a zero"),
        pytest.param({"script": f"{SECRET}\udc80"}, id="a script with half of a surrogate pair"),
        pytest.param({"script": [SECRET]}, id="no script"),
    ],
)
def test_others_are_refused_without_their_value(options):
    with pytest.raises(RequestRefused) as refused:
        resolve(CATALOG, options, "alice")
    assert SECRET not in str(refused.value)


def test_the_workspace_refuses_the_same_names():
    assert RESERVED_NAMES == REFUSED
