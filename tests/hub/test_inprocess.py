"""configure() in the hub of pytest-jupyterhub, below a path of its own, over its mock spawner."""

import re
from html import unescape

import pytest
from harness.hub_configuration import FAST
from harness.waiting import until
from jupyterhub.tests.mocking import MockSpawner
from jupyterhub.tests.utils import add_user, api_request, async_requests, public_url
from traitlets.config import Config

from demo.ports import pick_free
from gpuspawner.spawner import GPUSpawnerMixin, configure

CATALOG = {
    "version": 1,
    "gpus": {"a100": {"title": "A100", "match": "NVIDIA-A100", "memory": "80GiB"}},
    "simulated": {"a100": 2},
    "templates": {"lab": {"title": "Lab", "gpus": {"a100": "1-2"}}},
    "quotas": {"each-user": {"each": "user", "gpus": {"hard": 2}}},
}
pytestmark = pytest.mark.filterwarnings("default")  # JupyterHub's own mock hub warns


def hook(spawner):
    """An administrator's own, which means well."""
    if spawner.user.name == "hooked":
        spawner.user_options = {"gpu": "a100", "count": 8}
    if spawner.user.name == "slow":
        spawner.start_timeout = 500


@pytest.fixture
async def app(hub_app, tmp_path):
    port, service_port = pick_free(2)
    c = Config()
    c.JupyterHub.bind_url = f"http://127.0.0.1:{port}/@/space%20word/"
    c.JupyterHub.cookie_secret_file = str(tmp_path / "cookie_secret")
    c.JupyterHub.spawner_class = MockSpawner
    c.JupyterHub.load_roles = [{"name": "user", "scopes": ["self", "read:metrics"]}]
    c.MockSpawner.home_dir_template = str(tmp_path / "{username}")
    c.Spawner.pre_spawn_hook = hook
    # The sign-in of pytest-jupyterhub looks for cookies on the hub's own home page.
    configure(
        c, catalog=CATALOG, data_dir=tmp_path / "gpu", port=service_port, service_settings=FAST, replace_home=False
    )
    app = await hub_app(c)
    yield app
    await app.cleanup()


async def gpu(app, user, path: str):
    """Ask the service as this user."""
    token = user.new_api_token()
    url = public_url(app, path=f"services/gpu/api/v1/{path}")
    return (await async_requests.get(url, headers={"Authorization": f"token {token}"})).json()


async def running(app, user):
    async def look():
        return [w for w in (await gpu(app, user, "workspaces")).get("workspaces", []) if w["phase"] == "running"]

    return (await until(look, what=f"{user.name} has a running workspace"))[0]


async def test_configure_start_by_form_and_start_by_api(app):
    assert issubclass(app.spawner_class, GPUSpawnerMixin)
    assert issubclass(app.spawner_class, MockSpawner)

    # by form
    cookies = await app.login_user("fiona")
    page = await async_requests.get(public_url(app, path="hub/spawn"), cookies=cookies)
    assert page.status_code == 200
    action = unescape(re.search(r'id="spawn_form"\s+action="([^"]+)"', page.text)[1])
    origin = app.bind_url.split("/@/")[0]
    fields = {name: (None, value) for name, value in {"template": "lab", "gpu": "a100", "count": "2"}.items()}
    sent = await async_requests.post(f"{origin}{action}", files=fields, cookies=cookies, allow_redirects=False)
    assert sent.status_code == 302, sent.text
    fiona = app.users["fiona"]
    workspace = await running(app, fiona)
    environment = fiona.spawner.get_env()
    assert environment["CUDA_VISIBLE_DEVICES"] == ",".join(gpu["id"] for gpu in workspace["gpus"])
    assert len(workspace["gpus"]) == 2
    assert (await api_request(app, "users/fiona/server", method="delete")).status_code == 204

    # by API, refused and granted
    arno = add_user(app.db, app, name="arno")
    refused = await api_request(app, "users/arno/server", method="post", data='{"count": 3}')
    assert refused.status_code == 400
    assert refused.json()["message"] == "GPUs: You asked for 3. Allowed: 1 to 2. Ask for 1 to 2 A100."
    begun = await api_request(app, "users/arno/server", method="post", data='{"count": 1}')
    assert begun.status_code in {201, 202}
    assert len((await running(app, arno))["gpus"]) == 1
    await api_request(app, "users/arno/server", method="delete")

    # the request of the administrator's hook is checked too, and the waiting time is added to the hook's timeout
    add_user(app.db, app, name="hooked")
    refused = await api_request(app, "users/hooked/server", method="post", data="{}")
    assert refused.status_code == 409
    assert refused.json()["message"] == (
        "This hub is set up wrongly: its pre_spawn_hook sets options that are not allowed: "
        "GPUs: You asked for 8. Allowed: 1 to 2. Ask for 1 to 2 A100."
    )
    slow = add_user(app.db, app, name="slow").spawner
    await slow.run_pre_spawn_hook()
    assert slow.start_timeout > 500 + slow.gpu_wait_in_hub_seconds

    # earlier configuration is in force together with the additions of configure()
    scopes = (await api_request(app, "user", headers={"Authorization": f"token {arno.new_api_token()}"})).json()[
        "scopes"
    ]
    assert {"custom:gpu:use", "access:services!service=gpu", "read:metrics"} <= set(scopes)
