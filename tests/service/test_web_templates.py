"""Pages of the version that runs, whatever is installed under it meanwhile."""

import builtins

import pytest

from gpuspawner.service.web import base


def test_no_template_is_read_from_its_file_once_the_service_has_started(monkeypatch):
    def refuse(name, *_arguments, **_named):
        pytest.fail(f"{name} is read again")

    base.templates.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", refuse)
        found = {name: base.templates().get_template(name) for name in base._TEMPLATES}
    assert {"home.html", "admin_overview.html"} < found.keys()
    assert all(one.is_up_to_date for one in found.values())
    assert found["home.html"].filename.endswith("templates/home.html"), "a traceback says where"
