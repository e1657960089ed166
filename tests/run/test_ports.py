"""The process on a taken port is named, and picked ports are free."""

import os
import pwd
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from demo import ports


@pytest.fixture
def taken():
    with socket.create_server((ports.HOST, 0)) as server:
        yield server.getsockname()[1]


def test_a_listening_port_is_taken_and_its_holder_is_named_by_pid_and_command(taken):
    assert not ports.is_free(taken)
    assert ports.find_listener(taken).words.startswith(f"process {os.getpid()}: ")
    command = Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    assert command[:50] in ports.find_listener(taken).words


def test_the_holder_is_named_while_it_opens_and_closes_other_files():
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]  # listed before the socket
    ended = threading.Event()

    def close_and_open():
        while not ended.is_set():
            for at, file in enumerate(files):
                os.close(file)
                files[at] = os.open(os.devnull, os.O_RDONLY)

    with socket.create_server((ports.HOST, 0)) as server:
        thread = threading.Thread(target=close_and_open)
        thread.start()
        try:
            names = {ports.find_listener(server.getsockname()[1]).words.split(":")[0] for _ in range(20)}
        finally:
            ended.set()
            thread.join()
            for file in files:
                os.close(file)
    assert names == {f"process {os.getpid()}"}


def test_a_port_taken_on_all_addresses_is_taken(request):
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert not ports.is_free(server.getsockname()[1])


def test_a_port_with_connections_that_linger_from_an_earlier_run_is_free():
    with socket.create_server((ports.HOST, 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client:
            accepted, _ = server.accept()
            accepted.close()  # closed here first: TIME_WAIT stays on the server's port
            assert client.recv(1) == b""
    assert ports.is_free(address[1])


def test_the_next_free_port_skips_the_taken_one(taken):
    following = ports.first_free_after(taken - 1)
    assert following > taken
    assert ports.is_free(following)


def test_picked_ports_differ_and_are_free():
    picked = ports.pick_free(3)
    assert len(set(picked)) == 3
    assert all(map(ports.is_free, picked))


def test_a_picked_port_is_picked_by_no_other_process_before_its_server_listens(monkeypatch):
    def pick_elsewhere(candidates, count):
        code = f"from demo import ports; ports.PICKED = {candidates}; print(*ports.pick_free({count}))"
        done = subprocess.run([sys.executable, "-c", code], timeout=30, capture_output=True, text=True, check=True)
        return [int(port) for port in done.stdout.split()]

    (reserved,), (other,) = ports.pick_free(1), pick_elsewhere(ports.PICKED, 1)
    assert pick_elsewhere([*[reserved] * 99, other], 1) == [other]
    monkeypatch.setattr(ports, "MOST_RESERVED", 1)
    ports.pick_free(1)
    assert pick_elsewhere([reserved], 1) == [reserved]


def test_a_port_without_a_visible_holder_is_said_to_be_that():
    assert ports.find_listener(ports.pick_free(1)[0]).words == "a process that can't be seen from here"


def test_a_port_of_another_users_process_names_the_user(taken, monkeypatch):
    monkeypatch.setattr(Path, "iterdir", lambda _folder: iter(()))  # as if all processes belonged to other users
    assert ports.find_listener(taken).words == f"a process of the user {pwd.getpwuid(os.getuid()).pw_name}"


def test_on_an_address_of_another_machine_all_of_this_one_count(taken):
    assert not ports.is_free(taken, "192.0.2.1")
    assert ports.is_free(ports.pick_free(1)[0], "192.0.2.1")
