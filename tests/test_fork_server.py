"""A forked process is, to others and to itself, the process that was asked for."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.fork_server import run_python, start_python
from harness.waiting import eventually

SLEEPS = "import time; print('up', flush=True); time.sleep(60)"
STARTS_ANOTHER = """
import sys
sys.path.append({tests!r})
from harness.fork_server import ForkedProcess
child = ForkedProcess([sys.executable, "-c", {code!r}], server={server!r})
child.wait()
"""
TELLS_PARENTS = """
import os, time
while True:
    print(os.getpid(), os.getppid(), flush=True)
    time.sleep(0.1)
"""


def python(code, *arguments):
    return [sys.executable, "-c", code, *arguments]


@pytest.mark.parametrize(
    ("code", "expected"),
    [("", 0), ("raise SystemExit(3)", 3), ("import os; os._exit(4)", 4), ("1 / 0", 1), ("import os; os.abort()", -6)],
)
def test_a_forked_process_ends_with_the_exit_code_of_a_real_one(code, expected):
    assert run_python(python(code)).returncode == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_forked_process_as_it_ends_a_real_one(number):
    with start_python(python(SLEEPS), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"up\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.send_signal(number)
        assert process.wait(20) == process.poll() == -number
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_forked_process_has_its_own_arguments_environment_folder_and_streams(tmp_path):
    code = """
import os, sys
print(sys.argv, sorted(os.environ), os.getcwd(), input(), "PATH" in os.environ)
print("trouble", file=sys.stderr)
"""
    options = {"cwd": tmp_path, "env": {"ONE": "1"}, "text": True}
    pipe = subprocess.PIPE
    with start_python(python(code, "a b"), stdin=pipe, stdout=pipe, stderr=pipe, **options) as process:
        out, err = process.communicate("typed\n")
    assert out == f"['-c', 'a b'] ['ONE'] {tmp_path} typed False\n"
    assert err == "trouble\n"


def test_proc_shows_the_command_and_the_environment_of_a_forked_process():
    command = python(SLEEPS, "marked")
    with start_python(command, env={"MARK": "own"}, stdout=subprocess.DEVNULL) as process:
        shown = [Path(f"/proc/{process.pid}/{name}").read_bytes().rstrip(b"\0") for name in ("cmdline", "environ")]
        process.kill()
    assert shown == ["\0".join(command).encode(), b"MARK=own"]


def test_the_parent_of_a_forked_process_is_the_one_that_started_it_until_that_one_ends(tmp_path):
    with start_python(python("import time; time.sleep(60)")) as any_process:
        server = any_process._server
        any_process.kill()
    code = STARTS_ANOTHER.format(tests=str(Path(__file__).parent), code=TELLS_PARENTS, server=server)
    with (tmp_path / "told").open("w") as told:
        parent = start_python(python(code), stdout=told, start_new_session=True)
    lines = (tmp_path / "told").read_text
    child, its_parent = map(int, eventually(lambda: lines().splitlines()[0]).split())
    try:
        assert its_parent == parent.pid
        parent.kill()
        eventually(lambda: lines().endswith(f"\n{child} 1\n"))
    finally:
        os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.wait(20)
