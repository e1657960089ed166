"""Files that are not a store of gpuspawner: commands leave them unchanged and say which file to name instead."""

import sqlite3

import pytest
from databases import Database

from gpuspawner.cli import main
from gpuspawner.core.errors import Unavailable
from gpuspawner.service.store import Store
from gpuspawner.service.store.database.backup import DATABASE

INVALID = 1
HUBS = ("CREATE TABLE servers (id INTEGER)", "CREATE TABLE users (id INTEGER)")
TOLD = "The database is not gpuspawner's: it has the tables servers, users. Nothing was changed."


@pytest.fixture
def folder(tmp_path):
    """A folder with the database of another program."""
    with sqlite3.connect(tmp_path / DATABASE) as database:
        for table in HUBS:
            database.execute(table)
    return tmp_path


def names(folder):
    with sqlite3.connect(folder / DATABASE) as database:
        return [name for (name,) in database.execute("SELECT name FROM sqlite_master ORDER BY name")]


def test_a_file_of_something_else_is_neither_served_nor_backed_up(folder, tmp_path, capsys):
    store = Store(f"sqlite:///{folder / DATABASE}")
    with pytest.raises(Unavailable, match="not gpuspawner's"):
        store.open()
    store.close()
    for action in (["check"], ["backup", str(tmp_path / "gpu.tar")]):
        assert main(["server", "store", *action, "--data", str(folder)]) == INVALID
        assert TOLD in capsys.readouterr().err
    assert names(folder) == ["servers", "users"]
    assert not (tmp_path / "gpu.tar").exists()


def test_the_hub_s_own_database_is_not_taken_for_a_store(postgres, capsys):
    name = f"{postgres.database()}_hub"
    postgres.run(f"CREATE DATABASE {name}")
    hub = Database(postgres.server.url(name), postgres.server.password_file)
    for table in (*HUBS, "CREATE TABLE alembic_version (version_num TEXT)"):
        hub.run(table)
    hub.run("INSERT INTO alembic_version VALUES ('4621fec11365')")
    with pytest.raises(Unavailable, match="Give gpuspawner an empty database of its own"):
        hub.opened()
    password = ["--store-password-file", str(hub.password_file)]
    assert main(["server", "store", "check", "--store", hub.url, *password]) == INVALID
    assert TOLD in capsys.readouterr().err
    hub.close()


@pytest.mark.parametrize(
    "action",
    [["check"], ["backup", "-"], ["copy", "--store", "postgresql://gpu@127.0.0.1:1/gpu"]],
)
def test_a_folder_that_is_not_there_is_named_with_what_to_name_instead(tmp_path, capsys, action):
    assert main(["server", "store", *action, "--data", str(tmp_path / "absent")]) == INVALID
    told = capsys.readouterr().err
    assert told.startswith(f"{tmp_path}/absent has no {DATABASE}. Name the service's folder by --data")


def test_a_backup_that_cannot_be_written_or_read_is_told_by_its_name(tmp_path, capsys):
    store = Store(f"sqlite:///{tmp_path / DATABASE}")
    store.open()
    store.close()
    assert main(["server", "store", "backup", str(tmp_path / "none" / "gpu.tar"), "--data", str(tmp_path)]) == INVALID
    assert capsys.readouterr().err == f"gpuspawner: {tmp_path}/none/gpu.tar.half: No such file or directory.\n"
    assert main(["server", "store", "restore", str(tmp_path / "absent.tar"), "--data", str(tmp_path)]) == INVALID
    assert capsys.readouterr().err == f"gpuspawner: {tmp_path}/absent.tar: No such file or directory.\n"
