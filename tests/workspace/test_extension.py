"""The server extension in real Jupyter servers: who may ask, what counts as activity, and where it loads."""

import json
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

import gpuspawner

TOKEN = "workspace-token-that-nobody-else-may-see"


@pytest.fixture
def signed_in(lab):
    """Return a browser's requests: the cookies of a signed-in user, and additional headers."""
    jar = CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    opener.open(f"{lab.url}lab?token={lab.token}").close()

    def ask(method, path, **headers):
        if "X-XSRFToken" in headers:
            headers["X-XSRFToken"] = next(cookie.value for cookie in jar if cookie.name == "_xsrf")
        request = urllib.request.Request(lab.url + path, method=method, headers=headers)
        with opener.open(request) as response:
            return response.status, json.load(response)

    return ask


def status_of_refusal(call, *arguments):
    with pytest.raises(urllib.error.HTTPError) as caught:
        call(*arguments)
    caught.value.close()
    return caught.value.code


def test_state_is_the_workspaces_own(lab, service):
    status, body = lab.get("gpuspawner/state")
    assert (status, body["id"]) == (200, "lease-7")
    assert service.received == [("GET", "", f"token {TOKEN}")]


def test_the_result_of_user_files_is_shown_on_the_page_until_it_is_over(lab):
    assert lab.get("gpuspawner/home") == (200, {"busy": "", "notes": [], "ask": None})


def test_other_users_are_refused(lab, service):
    for path in ("state", "keep", "extend"):
        method = "GET" if path == "state" else "POST"
        request = urllib.request.Request(f"{lab.url}gpuspawner/{path}", method=method)
        assert status_of_refusal(urllib.request.urlopen, request) == 403
    assert service.received == []


def test_a_click_needs_the_xsrf_token(signed_in, service):
    assert status_of_refusal(signed_in, "POST", "gpuspawner/keep") == 403
    assert service.received == []
    status, _ = signed_in("POST", "gpuspawner/keep", **{"X-XSRFToken": "of the cookie"})
    assert status == 200
    assert service.posts() == [("POST", "/keep", f"token {TOKEN}")]


@pytest.mark.parametrize("path", ["stop", "keep/../stop", "state/x", ""])
def test_no_other_path_of_the_service_is_reachable(lab, service, path):
    assert status_of_refusal(lab.get, f"gpuspawner/{path}") in (404, 405)
    assert service.received == []


def test_a_get_never_acts(lab, service):
    assert status_of_refusal(lab.get, "gpuspawner/keep") == 405
    assert service.received == []


def test_polling_is_no_activity_but_a_users_click_is(lab, signed_in, service):
    lab.get("api/contents")
    before = lab.get("api/status")[1]["last_activity"]
    lab.get("gpuspawner/state")
    assert lab.get("api/status")[1]["last_activity"] == before
    signed_in("POST", "gpuspawner/extend", **{"X-XSRFToken": "of the cookie"})
    assert lab.get("api/status")[1]["last_activity"] > before


def test_the_service_away_is_an_answer_and_no_traceback(lab, running_service, service):
    running_service.close()
    try:
        assert lab.get("gpuspawner/state")[1]["away"] is True
    finally:
        running_service.listen()
    assert lab.get("gpuspawner/state")[1]["id"] == "lease-7"
    assert "Traceback" not in lab.log()
    assert TOKEN not in lab.log()


def test_loads_under_jupyterhub_singleuser_and_its_polls_are_no_activity_there(singleuser, service):
    status, body = singleuser.get("gpuspawner/state")
    assert (status, body["id"]) == (200, "lease-7")
    before = singleuser.get("api/status")[1]["last_activity"]
    singleuser.get("gpuspawner/state")
    assert singleuser.get("api/status")[1]["last_activity"] == before
    assert "Traceback" not in singleuser.log()
    assert TOKEN not in singleuser.log()


def test_is_silent_where_there_is_no_gpu_service(plain_lab):
    assert plain_lab.get("gpuspawner/state")[1] == {"absent": True}
    assert "gpuspawner.workspace | extension was successfully loaded" in plain_lab.log()


def test_the_labextension_is_whole_and_of_this_version():
    folder = Path(gpuspawner.__file__).parent / "workspace" / "labextension"
    package = json.loads((folder / "package.json").read_text())
    assert package["version"] == gpuspawner.__version__
    assert (folder / package["jupyterlab"]["_build"]["load"]).is_file()
