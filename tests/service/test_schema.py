"""The schema of a store: created at once, it is the schema that the migrations make."""

import re

import pytest
import sqlalchemy as sa
from databases import Database, postgres

from gpuspawner.service.store import tables
from gpuspawner.service.store.database import schema

COLUMNS = {
    "sqlite": """SELECT one.name, one.wr, part.name, part.type, part."notnull", part.dflt_value, part.pk
        FROM pragma_table_list one, pragma_table_info(one.name) part WHERE one.schema = 'main'""",
    "postgresql": """SELECT table_name, column_name, data_type, collation_name, is_nullable, column_default
        FROM information_schema.columns WHERE table_schema = 'public'""",
}
INDEXES = {
    "sqlite": "SELECT tbl_name, name, sql FROM sqlite_master WHERE type = 'index'",
    "postgresql": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
}
CONSTRAINTS = """SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace"""


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request, tmp_path):
    """Return a function that makes a database without tables."""
    made = []

    def make(name):
        if request.param == "sqlite":
            (tmp_path / name).touch()
            made.append(Database.sqlite(tmp_path / name))
        else:
            postgres().run(f"CREATE DATABASE {name}")
            made.append(Database(postgres().server.url(name), postgres().server.password_file))
        return made[-1]

    yield make
    for one in made:
        one.close()


def description(database):
    """Return the columns, indexes, constraints and rows of a database. The order of the columns does not matter."""
    kind = database.name
    found = [sorted(map(repr, database.run(query))) for query in (COLUMNS[kind], INDEXES[kind])]
    found.append(sorted(database.run(CONSTRAINTS)) if kind == "postgresql" else [])
    with database.connected() as connection:
        every = [*tables.metadata.sorted_tables, sa.table("alembic_version", sa.column("version_num"))]
        rows = {table.name: [dict(row) for row in connection.execute(sa.select(table)).mappings()] for table in every}
    return *found, rows


def test_a_new_store_has_the_schema_and_the_first_rows_that_all_migrations_make(empty_database):
    created, migrated = empty_database("made_at_once"), empty_database("made_by_migrations")
    with created.connected() as connection:
        schema.upgrade(connection)
    with migrated.connected() as connection:
        schema._migrate(connection, None)
    assert len(description(created)[0]) > 150, "a description has every column"
    for one, other in zip(description(created), description(migrated), strict=True):
        assert one == other


def test_the_newest_revision_is_that_of_the_last_migration():
    assert schema.newest_revision() == schema.known_migrations()[-1].revision


def test_the_types_and_the_index_of_live_leases_are_those_of_each_database(store, database):
    engine = database.plain_engine()
    with engine.connect() as connection:
        (live,) = [x for x in sa.inspect(connection).get_indexes("leases") if x["name"] == "uq_leases_live_key"]
        types = {str(x["type"]) for name in tables.metadata.tables for x in sa.inspect(connection).get_columns(name)}
    if database.name == "postgresql":
        assert types == {"BIGINT", "BOOLEAN", "DOUBLE PRECISION", "JSON", 'TEXT COLLATE "C"'}
    engine.dispose()
    where = live["dialect_options"][f"{database.name}_where"]
    assert re.fullmatch(r"\(?\(?phase\)?(::text)? <> 'ended'(::text)?\)?", str(where)), where
