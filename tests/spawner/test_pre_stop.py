"""The preStop hook, run by sh in a container's place: until when it keeps the server.

It signals processes, so it runs with process ids of its own. Programs that save are tried in a real container, by
`test_promises.py` of the cluster.
"""

import json
import os
import subprocess
import time

import pytest
from harness.programs import require_namespaces

from gpuspawner.backends.kubernetes.pods import PRE_STOP
from gpuspawner.service.workspaces.notice_file import write_script
from gpuspawner.spawner.kubernetes.manifests import _pre_stop

APART = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
FOR_SECONDS, SAID_SECONDS = 6, 2


@pytest.fixture(scope="module", autouse=True)
def apart():
    require_namespaces()


def begin(home, **variables):
    command = ["sh", "-c", _pre_stop(), PRE_STOP, str(FOR_SECONDS), str(SAID_SECONDS)]
    own = {"GPUSPAWNER_NOTICE": ".gpuspawner/notice.json", "HOME": str(home), "PATH": os.environ["PATH"], **variables}
    # Its first process is another one, as in a container, where that is the server.
    first = ["sh", "-c", 'setsid "$@"', "server", *command]
    return time.monotonic(), subprocess.Popen([*APART, *first], env=own)


def lasted(begun):
    since, process = begun
    assert process.wait(30) == 0
    return time.monotonic() - since


def write(home, kind, ends_in_seconds, words=""):
    notice = {"ends_at": round(time.time() + ends_in_seconds, 3), "kind": kind, "words": words}
    subprocess.run(["sh", "-s"], input=write_script("", notice), env={**os.environ, "HOME": str(home)}, check=True)


def test_the_server_is_kept_until_the_announced_end(tmp_path):
    begun = begin(tmp_path)
    write(tmp_path, "preempted", 4.2)
    assert 3 <= lasted(begun) < FOR_SECONDS


def test_an_end_that_is_announced_for_later_than_the_grace_is_another_one(tmp_path):
    write(tmp_path, "preempted", 600)
    assert SAID_SECONDS - 1 <= lasted(begin(tmp_path)) < 4


@pytest.mark.parametrize("words", ["", '"kind": "preempted"'])
def test_a_user_who_stops_it_does_not_wait_after_the_services_answer(tmp_path, words):
    write(tmp_path, "stopped", 5, words)
    assert lasted(begin(tmp_path)) < SAID_SECONDS


@pytest.mark.parametrize("left", ["nothing", "an end that is over", "an idle warning"])
def test_without_an_answer_of_the_service_it_waits_for_a_limited_time(tmp_path, left):
    if left == "an end that is over":
        write(tmp_path, "preempted", -60)
    elif left == "an idle warning":
        write(tmp_path, "idle", 5)
    assert SAID_SECONDS - 1 <= lasted(begin(tmp_path)) < 4


def test_a_pod_without_a_lease_waits_for_nothing(tmp_path):
    assert lasted(begin(tmp_path, GPUSPAWNER_NOTICE="")) < 1


def test_the_hook_reads_a_notice_as_the_service_writes_it(tmp_path):
    """The hook looks for these very words, since sh has no JSON."""
    write(tmp_path, "preempted", 5)
    text = (tmp_path / ".gpuspawner" / "notice.json").read_text()
    assert '"kind": "preempted"' in text
    assert f'"ends_at": {json.loads(text)["ends_at"]}' in text
