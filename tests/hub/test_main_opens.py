"""Settings of a workspace's process from its template's `opens`: the browser's start page, and whether SSH is on."""

import pytest
from harness.hub import RealHub

TOLD = ("JUPYTERHUB_DEFAULT_URL", "GPUSPAWNER_SSH")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    hub = RealHub(tmp_path_factory.mktemp("opens"), extra='c.Spawner.default_url = "/lab/tree/first.ipynb"')
    more = "  editor: {extends: cpu, opens: [vscode, ssh]}\n  both: {extends: cpu, opens: [lab, vscode]}\n"
    hub.catalog.write_text(hub.catalog.read_text().replace("policies:\n", f"{more}policies:\n"))
    try:
        yield hub.start()
    finally:
        hub.close()


@pytest.mark.slow  # the spawner's tests have the variables
def test_a_workspace_is_told_what_its_template_opens_and_the_next_is_told_nothing_of_it(hub):
    hub.add_user("alice")

    def told(template):
        hub.begin("alice", template=template)
        environment = hub.environment(hub.until("alice", "running", 60)["id"])
        hub.stop("alice")
        hub.until_ended("alice", "stopped", 60)
        return [environment.get(name) for name in TOLD]

    assert told("editor") == ["/vscode/", "1"]
    assert told("both") == ["/lab/tree/first.ipynb", None], (
        "an administrator's own page within the one that opens stays"
    )
    assert told("cpu") == ["/lab/tree/first.ipynb", None], "the same spawner: nothing of the last template stays"
