"""JupyterHub's own Home is replaced unless the configuration keeps it."""

from pathlib import Path

import pytest
from jupyterhub import handlers as hub_handlers
from jupyterhub.handlers.pages import HomeHandler

from gpuspawner.spawner.web import handlers


@pytest.mark.parametrize(("replace", "first"), [(True, handlers.Home), (False, HomeHandler)])
def test_home_is_replaced_unless_it_is_kept_also_after_the_configuration_is_read_again(monkeypatch, replace, first):
    routes = [(r"/home", HomeHandler), (r"/spawn", object)]
    monkeypatch.setattr(hub_handlers, "default_handlers", routes)
    for _ in range(2):
        handlers.route_first(Path("secret"), "http://127.0.0.1:1", "/services/gpu/", replace_home=replace)
    assert next(route[1] for route in routes if route[0] == "/home") is first
    assert [route[1] for route in routes if route[0] == "/spawn"] == [handlers.Start, object]
