"""What a workspace's process is told of its template's `opens`: where its browser goes, and whether SSH is on."""

import pytest
from harness import RealHub

TOLD = ("JUPYTERHUB_DEFAULT_URL", "GPUSPAWNER_SSH")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    hub = RealHub(tmp_path_factory.mktemp("opens"), extra='c.Spawner.default_url = "/tree"')
    editor = "  editor: {extends: cpu, opens: [vscode, ssh]}\n"
    hub.catalog.write_text(hub.catalog.read_text().replace("policies:\n", f"{editor}policies:\n"))
    try:
        yield hub.start()
    finally:
        hub.close()


def test_a_workspace_is_told_what_its_template_opens_and_the_next_is_told_nothing_of_it(hub):
    hub.add_user("alice")

    def told(template):
        hub.begin("alice", template=template)
        environment = hub.environment(hub.until("alice", "running", 60)["id"])
        hub.stop("alice")
        hub.until_ended("alice", "stopped", 60)
        return [environment.get(name) for name in TOLD]

    assert told("editor") == ["/vscode/", "1"]
    assert told("cpu") == ["/tree", None], "the same spawner: nothing of the last template stays"
