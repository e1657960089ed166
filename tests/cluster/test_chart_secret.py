"""The chart's Jobs for the secret: it is made once, never changed, and removed; and none of their rights is spare."""

import json

import pytest
import yaml
from chart_release import NAME, Release
from nodes import wait_for

pytestmark = pytest.mark.slow

SECRET = f"{NAME}-secret"


@pytest.fixture
def release(one_machine, tmp_path):
    with one_machine.namespace(**{"pod-security.kubernetes.io/enforce": "restricted"}) as namespace:
        release = Release(one_machine, namespace, tmp_path)
        release.write("http://hub:8081")
        release.values["keepOnUninstall"] = False
        try:
            yield release
        finally:
            release.close()


class Jobs:
    """The Jobs as helm renders them, whose account may lack a right."""

    def __init__(self, release):
        self.release = release
        self.kubectl = release.cluster.own.kubectl
        rendered = release.run("template", "--show-only=templates/secret-job.yaml").stdout
        self.parts = {(part["kind"], part["metadata"]["name"]): part for part in yaml.safe_load_all(rendered) if part}

    def grant(self, without=""):
        """Make account and rights, but for one verb."""
        role = self.parts["Role", SECRET]
        given = [rule for rule in role["rules"] if without not in rule["verbs"]]
        assert len(given) == len(role["rules"]) - bool(without)
        role["rules"] = given
        for kind in ("ServiceAccount", "Role", "RoleBinding"):
            self.apply(self.parts[kind, SECRET])

    def apply(self, part):
        self.kubectl("apply", "--filename=-", f"--namespace={self.release.namespace}", given=json.dumps(part))

    def run(self, action):
        """Run one; return whether it did it, and what it said."""
        job = self.parts["Job", f"{SECRET}-{action}"]
        job["spec"]["backoffLimit"] = 0
        self.apply(job)
        name, namespace = job["metadata"]["name"], f"--namespace={self.release.namespace}"

        def ended():
            status = json.loads(self.kubectl("get", f"job/{name}", namespace, "--output=json"))["status"]
            return {one["type"] for one in status.get("conditions", [])} & {"Complete", "Failed"}

        done = "Complete" in wait_for(ended, f"{name} ends")
        said = self.kubectl("logs", f"job/{name}", namespace)
        self.kubectl("delete", f"job/{name}", namespace)
        return done, said


def test_it_is_made_once_never_changed_and_removed(release):
    jobs = Jobs(release)
    jobs.grant()
    assert jobs.run("make") == (True, f"Secret {SECRET} was created.\n")
    first = release.secret()
    assert jobs.run("make") == (True, f"Secret {SECRET} exists and is unchanged.\n")
    assert release.secret() == first
    assert jobs.run("remove") == (True, f"Secret {SECRET} was removed.\n")
    assert jobs.run("remove") == (True, f"There is no Secret {SECRET}.\n")


@pytest.mark.parametrize(("verb", "action"), [("create", "make"), ("delete", "remove")])
def test_without_a_right_its_job_fails_and_says_which(release, verb, action):
    jobs = Jobs(release)
    jobs.grant(without=verb)
    done, said = jobs.run(action)
    assert not done
    assert f"403 Forbidden for {SECRET}. The Job's account needs the right to {verb} secrets" in said
