"""The store's address as an administrator writes it. Its password is never shown."""

import pytest

from gpuspawner.core.errors import Unavailable
from gpuspawner.service.process.serve_options import ServeOptions, StartError, store_of
from gpuspawner.service.store import Store
from tools.postgres import PASSWORD


def written(**options):
    return ServeOptions(**{"catalog": "catalog.yaml", "data": "gpu", **options})


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://gpu:geheim@db/gpu", "The address has a password in it"),
        ("postgresql://gpu:ge@heim@db/gpu", "The address has a password in it"),
        ("postgresql://gpu@db/gpu?password=geheim", "The address has a password in it"),
        ("postgresql://gpu:ge#heim@db/gpu", "The address has a password in it"),
        ("postgresql://gpu:ge?heim@db/gpu", "The address has a password in it"),
        ("postgresql://gpu:ge/heim@db/gpu", "The address has a password in it"),
        ("postgresql://gpu@db/gpu?passwor%64=geheim", "The address has a password in it"),
        (
            "postgresql://gpu@db/gpu?no_such=1",
            'It is no address of PostgreSQL (invalid URI query parameter: "no_such")',
        ),
        ("mysql://gpu@db/gpu", "Write it like postgresql://USER@HOST/DATABASE."),
        ("db", "Write it like postgresql://USER@HOST/DATABASE."),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_in_words_without_its_password(url, says):
    with pytest.raises(StartError) as told:
        store_of(written(store=url))
    assert says in str(told.value)
    assert "heim" not in str(told.value)


def test_without_an_address_it_is_a_file_of_the_folder_which_has_no_password(tmp_path):
    found = store_of(written(data=str(tmp_path)))
    assert (found.url, found.password_file) == (f"sqlite:///{tmp_path}/gpuspawner.sqlite", None)
    with pytest.raises(StartError, match="is for PostgreSQL"):
        store_of(written(store_password_file="password"))


@pytest.mark.parametrize("mode", [0o644, 0o602, 0o604])
def test_a_password_file_that_others_may_use_is_refused(tmp_path, mode):
    file = tmp_path / "password"
    file.write_text("geheim")
    file.chmod(mode)
    with pytest.raises(StartError, match=f"Others may read {file}, which holds its password. Run chmod 600") as told:
        store_of(written(store="postgresql://gpu@db/gpu", store_password_file=str(file)))
    assert "geheim" not in str(told.value)
    file.chmod(0o440)
    store_of(written(store="postgresql://gpu@db/gpu", store_password_file=str(file)))


def test_the_password_is_read_at_each_connection_and_never_shown(postgres, tmp_path):
    file = tmp_path / "password"
    url = postgres.server.url(postgres.database())
    store = Store(url, file)
    with pytest.raises(Unavailable, match=r"password cannot be read: .+No such file"):
        store.open()
    file.write_text("wrong-password")
    with pytest.raises(Unavailable, match="password authentication failed for user") as told:
        store.open()
    assert "wrong-password" not in str(told.value)
    file.write_text(PASSWORD + "\n")
    store.open()
    assert store.leases.live() == []
    assert PASSWORD not in repr(vars(store)) + repr(store._database.__dict__) + str(store._engine.url)
    store.close()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ("ALTER DATABASE {name} RENAME TO {name}_other", "does not exist"),
        ("ALTER DATABASE {name} CONNECTION LIMIT 0; ALTER ROLE gpu NOSUPERUSER", "raise the server's max_connections"),
        ("REVOKE ALL ON DATABASE {name} FROM PUBLIC", "permission denied for database"),
    ],
)
def test_a_refusal_by_the_database_server_is_reported_with_a_remedy(postgres, tmp_path, spoil, says):
    name = postgres.database()
    postgres.run("DROP ROLE IF EXISTS gpu")
    postgres.run("CREATE ROLE gpu LOGIN PASSWORD 'gpu'")
    file = tmp_path / "password"
    file.write_text("gpu")
    file.chmod(0o600)
    for one in spoil.format(name=name).split("; "):
        postgres.run(one)
    store = Store(postgres.server.url(name).replace("gpuspawner@", "gpu@"), file)
    with pytest.raises(Unavailable, match=says):
        store.open()
    store.close()


def test_a_role_that_may_make_no_tables_is_told_so_and_so_is_another_encoding(postgres, tmp_path):
    postgres.run("DROP ROLE IF EXISTS gpu")
    postgres.run("CREATE ROLE gpu LOGIN PASSWORD 'gpu'")
    postgres.run("DROP DATABASE IF EXISTS bare")
    postgres.run("CREATE DATABASE bare")
    postgres.run("DROP DATABASE IF EXISTS latin")
    postgres.run("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    file = tmp_path / "password"
    file.write_text("gpu")
    file.chmod(0o600)
    for name, says in (("bare", "GRANT ALL ON SCHEMA public"), ("latin", "Its encoding is LATIN1")):
        store = Store(postgres.server.url(name).replace("gpuspawner@", "gpu@"), file)
        with pytest.raises(Unavailable, match=says):
            store.open()
        store.close()
