"""A store is backed up while it is in use, and restored without a loss."""

import io
import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading

import pytest
from harness.hub import RealHub, eventually
from lease_builders import a_lease
from manifests import opened

from gpuspawner import __version__
from gpuspawner.cli import main
from gpuspawner.core.events import SecretSaved
from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.store.audit_log import AuditLine
from gpuspawner.service.store.database.backup import DATABASE
from gpuspawner.service.store.personal import StoredSecret
from gpuspawner.service.store.sealing import seal, unseal
from gpuspawner.spawner.hub import settings

DONE, INVALID, REFUSED = 0, 1, 2


@pytest.fixture
def data(tmp_path):
    """A service's folder with one lease."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "hub-id").write_text("1" * 32 + "\n")
    (folder / "secret").write_text("2" * 64 + "\n")
    store = opened(folder)
    store.save([a_lease("one")])
    store.close()
    return folder


def leases(folder):
    store = opened(folder)
    try:
        return [lease.id for lease in store.leases.live()]
    finally:
        store.close()


def run(action, *arguments, data):
    return main(["server", "store", action, *map(str, arguments), "--data", str(data)])


def test_a_backup_of_a_store_that_is_written_meanwhile_is_whole_and_comes_back(data, tmp_path, capsys):
    store, over = opened(data), threading.Event()

    def write():
        number = 0
        while not over.is_set():
            number += 1
            store.save([a_lease(f"lease-{number}")])

    writing = threading.Thread(target=write)
    writing.start()
    try:
        eventually(lambda: len(store.leases.live()) > 20, 30)
        assert run("backup", tmp_path / "gpu.tar", data=data) == DONE
        held = len(store.leases.live())
    finally:
        over.set()
        writing.join()
    store.close()
    assert "The backup holds the secret of hub and service" in capsys.readouterr().out
    assert (tmp_path / "gpu.tar").stat().st_mode & 0o777 == 0o600
    new = tmp_path / "new"
    assert run("restore", tmp_path / "gpu.tar", data=new) == DONE
    assert 20 < len(leases(new)) <= held
    assert [(new / name).read_text() for name in ("hub-id", "secret")] == ["1" * 32 + "\n", "2" * 64 + "\n"]


def test_an_older_service_does_not_take_a_restored_store_for_its_own(data, tmp_path):
    assert run("backup", tmp_path / "gpu.tar", data=data) == DONE
    for _ in range(3):
        old = opened(data)
    old.save([a_lease("two")])
    old.close()
    assert run("restore", tmp_path / "gpu.tar", data=data) == DONE
    new = opened(data)
    assert new.epoch == old.epoch + 1
    assert [lease.id for lease in new.leases.live()] == ["one"]
    new.close()


def test_the_old_store_and_the_folders_own_secret_are_kept(data, tmp_path, capsys):
    assert run("backup", tmp_path / "gpu.tar", data=data) == DONE
    store = opened(data)
    store.save([a_lease("two")])
    store.close()
    (data / "secret").write_text("3" * 64)
    assert run("restore", tmp_path / "gpu.tar", data=data) == DONE
    (before,) = data.glob(f"{DATABASE}.until-*")
    assert f"The previous store is {before}." in capsys.readouterr().out
    assert (data / "secret").read_text() == "3" * 64
    assert leases(data) == ["one"]
    shutil.copy(before, data / DATABASE)
    assert sorted(leases(data)) == ["one", "two"]


def test_a_damaged_store_is_kept_with_what_was_not_yet_written_into_it(data, tmp_path):
    assert run("backup", tmp_path / "gpu.tar", data=data) == DONE
    store = opened(data)
    store.save([a_lease("two")])
    store.close()
    store = opened(data)  # what fits into pages that are there leaves the first one alone, in which the head is
    store.save([a_lease("two", attempt=7)])  # this write stays in the WAL while another process has the file open
    with (data / DATABASE).open("r+b") as file:
        head = file.read(100)
        file.seek(0)
        file.write(b"torn" * 25)
    assert run("restore", tmp_path / "gpu.tar", data=data) == DONE
    store.close()
    (before,) = data.glob(f"{DATABASE}.until-*[0-9]")
    (tmp_path / "saved").mkdir()
    for end in ("", "-wal"):
        shutil.copy(f"{before}{end}", tmp_path / "saved" / f"{DATABASE}{end}")
    with (tmp_path / "saved" / DATABASE).open("r+b") as file:
        file.write(head)
    store = opened(tmp_path / "saved")
    assert sorted((lease.id, lease.attempt) for lease in store.leases.live()) == [("one", 1), ("two", 7)]
    store.close()
    assert leases(data) == ["one"]


def archive(path, **files):
    with tarfile.open(path, "w") as out:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            out.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        pytest.param({"../evil": b"x"}, "it has '../evil' in it.", id="a path out of the folder"),
        pytest.param({"secret": b"x"}, f"it has no {DATABASE}.", id="no database"),
        pytest.param({DATABASE: b"not a database, however long it is" * 50}, "file is not a database", id="none"),
        pytest.param(None, "This is no backup of gpuspawner", id="no archive"),
    ],
)
def test_an_invalid_backup_changes_nothing(data, tmp_path, capsys, files, said):
    if files is None:
        (tmp_path / "gpu.tar").write_bytes(b"text")
    else:
        archive(tmp_path / "gpu.tar", **files)
    assert run("restore", tmp_path / "gpu.tar", data=data) == INVALID
    assert said in capsys.readouterr().err
    assert leases(data) == ["one"]
    assert not list(data.glob(".restore-*"))


def test_a_backup_of_another_hub_or_of_a_newer_version_is_refused(data, tmp_path, capsys):
    assert run("backup", tmp_path / "gpu.tar", data=data) == DONE
    (data / "hub-id").write_text("9" * 32)
    assert run("restore", tmp_path / "gpu.tar", data=data) == REFUSED
    assert f"belongs to the hub {'9' * 32}, and the backup is of {'1' * 32}" in capsys.readouterr().err
    with sqlite3.connect(data / DATABASE) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    assert run("check", data=data) == INVALID
    assert f"Install gpuspawner {__version__} or a later one" in capsys.readouterr().out
    assert run("backup", tmp_path / "newer.tar", data=data) == DONE
    assert run("restore", tmp_path / "newer.tar", data=tmp_path / "new") == REFUSED
    assert "The backup is of a later version. It has schema 9999" in capsys.readouterr().err


def test_a_folder_in_use_is_not_restored(data, tmp_path, capsys):
    assert run("backup", tmp_path / "gpu.tar", data=data) == DONE
    settings.lock_data_folder(data, "http://hub.example.org/")
    try:
        assert run("restore", tmp_path / "gpu.tar", data=data) == REFUSED
        assert "which serves http://hub.example.org/. Stop it first" in capsys.readouterr().err
    finally:
        settings._held.clear()


def test_a_service_of_its_own_that_beats_is_not_restored_under(data, tmp_path, capsys):
    assert run("backup", tmp_path / "gpu.tar", data=data) == DONE
    store, over = opened(data), threading.Event()

    def beat():
        while not over.wait(0.3):
            store.beat()

    store.beat()
    beating = threading.Thread(target=beat)
    beating.start()
    try:
        assert run("restore", tmp_path / "gpu.tar", data=data) == REFUSED
        assert f"A service uses {data}. Stop it first" in capsys.readouterr().err
    finally:
        over.set()
        beating.join()
        store.close()


def test_without_a_store_it_is_said_where_to_look(tmp_path, capsys):
    for action in (["check"], ["backup", str(tmp_path / "gpu.tar")]):
        assert run(*action, data=tmp_path) == INVALID
        assert f"{tmp_path} has no {DATABASE}. Name the service's folder by --data" in capsys.readouterr().err
    assert not (tmp_path / "gpu.tar").exists()


def test_check_as_json(data, capsys):
    assert run("check", "--json", data=data) == DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["live"], found["migrations"], found["is_newer"]) == (1, [], False)


def test_promise_2_after_a_restore_what_runs_is_adopted_and_who_waits_keeps_the_place(tmp_path):
    hub = RealHub(tmp_path, gpus=1)
    try:
        hub.start()
        hub.add_user("ada", "bob", "cem", "eve")
        hub.begin("ada")
        ada = hub.until("ada", "running")
        hub.begin("eve", template="cpu")
        eve = hub.until("eve", "running")
        hub.begin("cem")
        cem = hub.until("cem", "queued")
        assert run("backup", tmp_path / "gpu.tar", data=tmp_path / "gpu") == DONE
        hub.stop("eve")
        hub.until_ended("eve", "stopped")
        hub.begin("bob", template="cpu")
        bob = hub.until("bob", "running")
        pids = {lease["id"]: hub.server_pids(lease["id"]) for lease in (ada, bob)}
        assert run("restore", tmp_path / "gpu.tar", data=tmp_path / "gpu") == REFUSED, "the hub works on it"
        hub.terminate_hub()
        eventually(lambda: not hub.service_pids(), 60, "the service ends with its hub")
        assert run("restore", tmp_path / "gpu.tar", data=tmp_path / "gpu") == DONE
        hub.start_hub()
        for before in (ada, bob):
            now = hub.until(before["user"], "running")
            assert now["id"] == before["id"]
            # A lease missing from the backup is rebuilt from its process, with the end time of the grant.
            assert now["ends_at"] == pytest.approx(before["ends_at"], abs=5.0 if before is bob else 0.0)
            assert hub.server_pids(before["id"]) == pids[before["id"]]
        waits = hub.lease("cem")
        assert (waits["id"], waits["asked_at"], waits["queue"]["place"]) == (cem["id"], cem["asked_at"], 1)
        eventually(lambda: hub.last_end("eve")["id"] == eve["id"], 90, "what ended since then ends in it too")
    finally:
        hub.close()


def test_an_identity_that_is_a_link_is_backed_up_as_what_it_names(data, tmp_path):
    (data / "secret").rename(tmp_path / "mounted")
    (data / "secret").symlink_to(tmp_path / "mounted")
    assert run("backup", tmp_path / "it.tar", data=data) == DONE
    assert run("restore", tmp_path / "it.tar", data=tmp_path / "new") == DONE
    assert (tmp_path / "new" / "secret").read_text() == "2" * 64 + "\n"
    assert leases(tmp_path / "new") == ["one"]


def test_a_hub_id_that_is_no_text_is_no_backup(data, tmp_path, capsys):
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        archive.add(data / DATABASE, DATABASE)
        member = tarfile.TarInfo("hub-id")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"\xff\xfe"))
    assert run("restore", tmp_path / "bad.tar", data=data) == REFUSED
    assert "belongs to the hub" in capsys.readouterr().err
    assert leases(data) == ["one"]


def test_a_name_that_comes_twice_is_no_backup(data, tmp_path, capsys):
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        for _ in range(2):
            archive.add(data / DATABASE, DATABASE)
    assert run("restore", tmp_path / "bad.tar", data=data) == INVALID
    assert "This is no backup of gpuspawner" in capsys.readouterr().err


def lose_database(folder):
    """Delete the database of a store in use: the log that SQLite keeps with it stays."""
    store = opened(folder)
    store.save([a_lease("later")])
    logs = {end: (folder / f"{DATABASE}{end}").read_bytes() for end in ("-wal", "-shm")}
    store.close()
    (folder / DATABASE).unlink()
    for end, content in logs.items():
        (folder / f"{DATABASE}{end}").write_bytes(content)
    assert logs["-wal"]


def test_the_log_of_a_lost_database_is_not_applied_to_the_restored_one(data, tmp_path):
    assert run("backup", tmp_path / "gpu.tar", data=data) == DONE
    lose_database(data)
    assert run("restore", tmp_path / "gpu.tar", data=data) == DONE
    assert leases(data) == ["one"]
    with sqlite3.connect(data / DATABASE) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    raw.close()
    assert list(data.glob(f"{DATABASE}.until-*-wal")), "what was left of the old one is kept"


def test_promise_2_a_restore_that_is_killed_leaves_the_old_store_or_the_new_one(data, tmp_path):
    assert run("backup", tmp_path / "gpu.tar", data=data) == DONE
    store = opened(data)
    store.save([a_lease("two")])
    store.close()
    killer = (
        "import os, sys; from pathlib import Path; left = [%d]\n"
        "from gpuspawner.service.store.database.backup import restore\n"
        "def hook(event, _):\n"
        "    if event in ('os.remove', 'os.rename', 'os.chmod', 'os.chown', 'sqlite3.connect'):\n"
        "        left[0] -= 1\n"
        "        left[0] or os._exit(9)\n"
        "sys.addaudithook(hook)\n"
        "restore(open(sys.argv[2], 'rb'), Path(sys.argv[1]), lambda: '')\n"
    )
    ends = []
    for point in range(1, 40):
        folder = tmp_path / f"killed-{point}"
        shutil.copytree(data, folder)
        command = [sys.executable, "-c", killer % point, folder, tmp_path / "gpu.tar"]
        ends.append(subprocess.run(command, check=False).returncode)
        assert leases(folder) in (["one"], ["one", "two"]), f"killed at {point}"
        if ends[-1] == 0:
            break
    assert ends == [9] * (len(ends) - 1) + [0]
    assert len(ends) > 5


def test_two_restores_within_a_second_keep_both_stores_of_before(data, tmp_path):
    assert run("backup", tmp_path / "gpu.tar", data=data) == DONE
    store = opened(data)
    store.save([a_lease("two")])
    store.close()
    for _ in range(2):
        assert run("restore", tmp_path / "gpu.tar", data=data) == DONE
    kept = sorted(data.glob(f"{DATABASE}.until-*"))
    assert len(kept) == 2
    shutil.copy(kept[0], data / DATABASE)
    assert sorted(leases(data)) == ["one", "two"]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE meta SET number = 9223372036854775807 WHERE name = 'epoch'", "is not a number of openings"),
        ("UPDATE meta SET number = 'abc' WHERE name = 'epoch'", "is not a number of openings"),
        ("DELETE FROM alembic_version", "its database has no schema"),
        ("CREATE TRIGGER t AFTER INSERT ON audit BEGIN DELETE FROM leases; END", "it has the trigger 't'"),
    ],
)
def test_a_crafted_backup_is_refused_in_words(data, tmp_path, capsys, statement, said):
    shutil.copy(data / DATABASE, tmp_path / DATABASE)
    with sqlite3.connect(tmp_path / DATABASE) as raw:
        raw.execute(statement)
    raw.close()
    archive(tmp_path / "bad.tar", **{DATABASE: (tmp_path / DATABASE).read_bytes()})
    assert run("restore", tmp_path / "bad.tar", data=data) == INVALID
    assert said in capsys.readouterr().err
    assert leases(data) == ["one"]


def test_secrets_of_users_are_encrypted_with_a_new_key_while_the_store_is_in_use(data, tmp_path, capsys):
    old, new, other, owner = (b"\x22" * 32, b"\x33" * 32, b"\x44" * 32, Owner("1" * 32, "alice born"))
    store = opened(data)
    line = AuditLine(0.0, "", "alice", "alice", SecretSaved("A"))
    for name, key in (("A", old), ("B", old), ("C", new), ("LOST", other)):
        assert store.secrets.save(owner, StoredSecret(name, seal(key, owner, name, f"of {name}"), 7.0), 9, line)
    (data / "secret").rename(tmp_path / "secret.old")
    (data / "secret").write_text("3" * 64 + "\n")
    assert run("reencrypt", "--old-secret-file", tmp_path / "secret.old", data=data) == DONE
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith(
        "Encrypted 2 secrets with the new key. 1 had it already. 1 secret can be decrypted by neither"
    )
    found = {one.name: (unseal(new, owner, one), one.changed_at) for one in store.secrets.of(owner)}
    assert found == {"A": ("of A", 7.0), "B": ("of B", 7.0), "C": ("of C", 7.0), "LOST": (None, 7.0)}
    assert run("reencrypt", "--old-secret-file", tmp_path / "secret.old", data=data) == DONE
    assert capsys.readouterr().out.startswith("Encrypted 0 secrets with the new key. 3 had it already.")
    store.close()


def test_a_damaged_secret_keeps_no_other_from_a_new_key(data, tmp_path, capsys):
    old, new, owner = b"\x22" * 32, b"\x33" * 32, Owner("1" * 32, "alice born")
    store, line = opened(data), AuditLine(0.0, "", "alice", "alice", SecretSaved("A"))
    for name in ("A", "B"):
        assert store.secrets.save(owner, StoredSecret(name, seal(old, owner, name, f"of {name}"), 7.0), 9, line)
    with sqlite3.connect(data / DATABASE) as raw:
        raw.execute("UPDATE secrets SET sealed = x'ff00' WHERE name = 'A'")
    raw.close()
    (data / "secret").rename(tmp_path / "secret.old")
    (data / "secret").write_text("3" * 64 + "\n")
    assert run("reencrypt", "--old-secret-file", tmp_path / "secret.old", data=data) == DONE
    assert capsys.readouterr().out.startswith("Encrypted 1 secret with the new key. 0 had it already.")
    assert [unseal(new, owner, one) for one in store.secrets.of(owner)] == ["of B"]
    store.close()


def test_a_secret_file_that_cannot_be_used_is_refused_by_its_option(data, tmp_path, capsys):
    (tmp_path / "short").write_text("abc")
    assert run("reencrypt", "--old-secret-file", tmp_path / "short", data=data) == INVALID
    assert "--old-secret-file: " in capsys.readouterr().err
    assert run("reencrypt", "--old-secret-file", data / "secret", data=tmp_path / "no") == INVALID
