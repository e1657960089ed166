"""The program of a fork server: it imports the hub and the service once and forks a process for each command.

Run as ``python fork_server_main.py SOCKET FILLER`` with a second filler in the environment. A forked process writes
its own command line and environment over the fillers: the tests find processes by what /proc shows.

The server has one thread and no event loop, so a fork copies no running code. The server ends with its standard input.
"""

import array
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from pathlib import Path

PRELOADED = (
    "jupyterhub.app",
    "jupyterhub.auth",
    "jupyterhub.proxy",
    "jupyterhub.spawner",
    "gpuspawner.spawner",
    "gpuspawner.cli.main",
    "gpuspawner.cli.server.serve",
    "gpuspawner.backends.fake",
)
REPO = str(Path(__file__).parents[2])
LONGEST_REQUEST = 1 << 20
CREDENTIALS = struct.Struct("3i")
NUMBER = struct.Struct("i")
ARGUMENTS, ENVIRONMENT = 48, 50
"""The fields of /proc/PID/stat, counted from 1, with the address where each begins. The next field has its end."""


class Server:
    """Accepts one connection for each process, and answers with its pid and later its exit code."""

    def __init__(self, address):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._fork)
        self._selector.register(0, selectors.EVENT_READ, self._end)
        self._connections = {}

    def serve(self):
        """Fork for each request. Returns only in a forked process, with its request."""
        while True:
            for key, _ in self._selector.select():
                request = key.data(key.fileobj)
                if request is not None:
                    return request

    def _end(self, _):
        if not os.read(0, 1):
            os._exit(0)

    def _fork(self, listener):
        connection, _ = listener.accept()
        data, ancillary, _, _ = connection.recvmsg(LONGEST_REQUEST, socket.CMSG_SPACE(3 * NUMBER.size))
        streams = array.array("i", ancillary[0][2])
        pid = os.fork()
        if pid == 0:
            self._close()
            return json.loads(data), streams, connection
        for stream in streams:
            os.close(stream)
        process = os.pidfd_open(pid)
        self._connections[process] = connection, pid
        self._selector.register(process, selectors.EVENT_READ, self._report)
        return None

    def _report(self, process):
        self._selector.unregister(process)
        os.close(process)
        connection, pid = self._connections.pop(process)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):  # the one that asked has ended
            connection.send(NUMBER.pack(os.waitstatus_to_exitcode(status)))
        connection.close()

    def _close(self):
        """Close the sockets of the server in a forked process."""
        self._selector.close()
        self._listener.close()
        for process, (connection, _) in self._connections.items():
            os.close(process)
            connection.close()


def become(request, streams, connection):
    """Turn a forked process into the one that was requested, and report its pid."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if request["new_session"]:
        os.setsid()
    os.chdir(request["folder"])
    environment, command = request["environment"], request["command"]
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    _overwrite(ARGUMENTS, command)
    _overwrite(ENVIRONMENT, [f"{name}={value}" for name, value in environment.items()])
    sys.orig_argv = list(command)
    found = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:1] = [str(Path.cwd()) if command[1] == "-m" else "", *found]
    sys.warnoptions[:] = [part for part in environment.get("PYTHONWARNINGS", "").split(",") if part]
    warnings._processoptions(sys.warnoptions)
    _open_streams(unbuffered=bool(environment.get("PYTHONUNBUFFERED")))
    os.getppid = _parent_of(connection)
    _reread_prefix()
    connection.send(NUMBER.pack(os.getpid()))
    connection.close()
    _run_sitecustomize(found)


def _reread_prefix():
    """Set the service's path in JupyterHub's classes, which read it when they are imported.

    Otherwise cookies of the service would be valid for all paths, also for the servers of users.
    """
    auth = sys.modules["jupyterhub.services.auth"]
    for cls in (auth.HubAuth, auth.HubOAuth):
        prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX") or "/"
        cls.base_url.default_value = prefix
        cls._static_immutable_initial_values["base_url"] = prefix


def _open_streams(*, unbuffered):
    """Open the standard streams as Python does at its start. The server's streams refer to other files."""
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", 1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    if unbuffered:
        sys.stdout.reconfigure(write_through=True)


def _overwrite(field, words):
    """Replace the server's words in /proc by these words."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(fields[number - 3]) for number in (field, field + 1))
    text = b"\0".join(os.fsencode(word) for word in words)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _parent_of(connection):
    """Return the replacement of os.getppid: the process that asked counts as the parent, not the server."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    parent = CREDENTIALS.unpack(credentials)[0]
    poller = select.poll()
    try:
        poller.register(os.pidfd_open(parent), select.POLLIN)  # readable once that process has ended
    except ProcessLookupError:
        return lambda: 1
    return lambda: 1 if poller.poll(0) else parent


def _run_sitecustomize(folders):
    for file in (Path(folder) / "sitecustomize.py" for folder in folders):
        if file.exists():
            exec(compile(file.read_text(), str(file), "exec"), {"__name__": "sitecustomize"})
            return


def run(command):
    """Run the arguments of a ``python`` command."""
    kind, name, *_ = command[1:]
    if kind == "-m":
        sys.argv = command[2:]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *command[3:]]
        sys.modules["__main__"] = main = type(sys)("__main__")
        exec(compile(name, "<string>", "exec"), vars(main))
    else:
        raise SystemExit(f"a fork server runs `-m MODULE` and `-c CODE`, not {kind}")


if __name__ == "__main__":
    sys.path[0] = REPO
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the forked processes, and the tests end the server
    for module in PRELOADED:
        importlib.import_module(module)
    assert threading.active_count() == 1, threading.enumerate()
    gc.freeze()
    server = Server(sys.argv[1])
    os.write(1, b"ready\n")
    asked = server.serve()
    del server
    become(*asked)
    run(asked[0]["command"])
