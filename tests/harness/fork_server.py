"""Starts Python commands without the time for their imports: a server that has imported all forks each of them.

A forked process has its own command line, environment, streams and parent, and ends as a real one does. It does not
show a missing or a slow import, nor what ``PYTHON*`` variables do before the imports. Tests of those ask for
``real=True``.
"""

import array
import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

MAIN = Path(__file__).with_name("fork_server_main.py")
NUMBER_BYTES = 4
COMMAND_ROOM, ENVIRONMENT_ROOM = 8_000, 32_000
"""The longest command line and environment that /proc shows of a forked process."""
END_SECONDS = 20


class ForkServer:
    """The fork server of one interpreter."""

    def __init__(self, python):
        self._folder = tempfile.TemporaryDirectory(prefix="fork-")
        self.address = str(Path(self._folder.name) / "socket")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._process = subprocess.Popen(
            [python, str(MAIN), self.address, "." * COMMAND_ROOM],
            env={**kept, "FORK_SERVER_FILLER": "." * ENVIRONMENT_ROOM},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout.readline() == b"ready\n", "the fork server did not start: its words stand above"
        atexit.register(self.close)

    def close(self):
        """End the server. The processes that it forked go on."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(END_SECONDS)
        self._folder.cleanup()


@cache
def fork_server(python):
    """Return the server of an interpreter, which the first call starts."""
    return ForkServer(python)


class ForkedProcess(subprocess.Popen):
    """A process of a fork server, used as any other Popen. The server waits for it and tells its exit code.

    JupyterHub checks that a spawner's process is a Popen.
    """

    _connection = None

    def __init__(self, command, *, server, **options):
        self._server = server
        super().__init__(command, **options)

    def __del__(self, *arguments, **options):
        super().__del__(*arguments, **options)
        if self._connection is not None:
            os.close(self._connection)

    def _execute_child(self, command, _executable, preexec_fn, _close_fds, pass_fds, cwd, env, *rest):
        _startupinfo, _flags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *more = rest
        if shell or preexec_fn or pass_fds:
            raise ValueError("a fork server starts no shell, and takes no preexec_fn or pass_fds")
        request = {
            "command": [os.fsdecode(word) for word in command],
            "folder": os.fsdecode(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "new_session": more[5],  # after restore_signals, gid, gids, uid, umask
        }
        given = (p2cread, c2pwrite, errwrite)
        streams = array.array("i", [own if own != -1 else number for number, own in enumerate(given)])
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as connection:
            connection.connect(self._server)
            connection.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
            self.pid = int.from_bytes(connection.recv(NUMBER_BYTES), sys.byteorder)
            self._connection = connection.detach()
        assert self.pid, f"the fork server started no {command}"
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _internal_poll(self, _deadstate=None):
        with self._waitpid_lock:
            if self.returncode is None and _is_readable(self._connection, 0):
                told = os.read(self._connection, NUMBER_BYTES)
                self.returncode = int.from_bytes(told, sys.byteorder, signed=True) if told else _deadstate
        return self.returncode

    def _wait(self, timeout):
        if self.returncode is None and not _is_readable(self._connection, timeout):
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self._internal_poll()


def _is_readable(file, seconds):
    poller = select.poll()
    poller.register(file, select.POLLIN)
    return bool(poller.poll(None if seconds is None else max(0, seconds) * 1000))


def start_python(command, *, real=False, **options):
    """Start ``[PYTHON, "-m" or "-c", ...]``, with the options of Popen; ``real`` executes it instead of forking."""
    if real:
        return subprocess.Popen(command, **options)
    return ForkedProcess(command, server=fork_server(command[0]).address, **options)


def run_python(command, *, timeout=60, **options):
    """Run such a command with captured output, as subprocess.run does. Return the CompletedProcess."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start_python(command, **{**pipes, **options}) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
