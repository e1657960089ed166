"""The end of a local server's output, kept by a program of its own, and a pod's, read from the cluster."""

import asyncio
import subprocess
import sys

import gpuspawner.spawner.keep_output as keeper
from gpuspawner.spawner.servers import Output

NOISY = "import sys\nfor i in range(30000): print('line', i)\nsys.stderr.write('the last\\n')"


async def test_the_end_is_kept_in_a_small_private_file(tmp_path):
    output = Output(tmp_path / "output" / "lease-1.txt")
    with output.kept({}) as arguments:
        server = subprocess.Popen([sys.executable, "-c", NOISY], **arguments)
    await asyncio.to_thread(server.wait)
    text = await output.read()
    assert text.endswith("line 29998\nline 29999\nthe last\n")
    assert text.lstrip("\n").split("\n")[0].startswith("line "), "no half of a line"
    assert output.path.stat().st_size <= 2 * keeper.KEPT_BYTES
    assert (output.path.stat().st_mode & 0o777, output.path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    output.forget()
    assert await output.read() == ""


def test_all_output_is_passed_on_and_the_server_outlives_the_hubs_log(tmp_path):
    kept = tmp_path / "kept"
    command = [sys.executable, "-I", "-S", keeper.__file__, str(kept)]
    whole = subprocess.run(command, input=b"one\ntwo\n", capture_output=True, check=True)
    assert (whole.stdout, whole.stderr) == (b"", b"one\ntwo\n")
    kept.unlink()
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    running.stderr.close()
    running.stdin.write(b"three\n")
    running.stdin.flush()
    while not kept.exists() or not kept.stat().st_size:
        assert running.poll() is None
    running.terminate()  # as a session's end does; it ends with what it reads
    running.stdin.write(b"four\n")
    running.stdin.close()
    assert running.wait(20) == 0
    assert kept.read_text() == "three\nfour\n"


async def test_the_administrator_s_own_file_stays(tmp_path):
    own = {"stdout": subprocess.DEVNULL, "shell": True}
    with Output(tmp_path / "output" / "x.txt").kept(own) as arguments:
        assert arguments == own
    assert not (tmp_path / "output").exists()
