"""Faults of PostgreSQL and of the connection to it: no acknowledged write is lost, and each fault is reported."""

import signal
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
import sqlalchemy as sa
from cable import Cable
from databases import Database
from harness.programs import require
from harness.waiting import eventually
from lease_builders import a_lease
from service_process import call

from gpuspawner.core.errors import Superseded, Unavailable
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.service.store import store as store_module
from gpuspawner.service.store.database import postgresql
from tools.postgres import FAST, Server

pytestmark = pytest.mark.postgresql


@pytest.fixture
def cable(postgres):
    found = Cable(postgres.server.port)
    yield found
    found.close()


@pytest.fixture
def database(postgres, cable):
    """A database of the test's own, at the other end of the cable."""
    found = Database(postgres.server.url(postgres.database(), cable.port), postgres.server.password_file)
    yield found
    found.close()


@pytest.fixture
def direct(postgres, database):
    """The same, without a cable."""
    found = Database(postgres.server.url(database.url.rpartition("/")[2]), postgres.server.password_file)
    yield found
    found.close()


COMMIT = b"COMMIT\0"


def numbered(name):
    return a_lease(name, key=Key("hub", "alice born", name))


class Writer:
    """Writes one lease after another, until it is told to end; knows which are stored, and what it was told."""

    def __init__(self, store):
        self.stored, self.told, self.found_later = [], set(), set()
        self._store, self._ends = store, threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self):
        number, unsure = 0, set()
        while not self._ends.is_set():
            number += 1
            try:
                self._store.save([numbered(str(number))])
                self.stored.append(str(number))
                unsure = set()
            except Unavailable as error:
                self.told.add(str(error))
                time.sleep(0.05)
                unsure.add(str(number))
            except Superseded:  # as a service does that is started again: one of these arrived, and its answer did not
                self._store.open()
                self.found_later |= unsure

    def goes_on(self, seconds=60.0):
        before = len(self.stored)
        eventually(lambda: len(self.stored) > before + 3 or not self._thread.is_alive(), seconds)
        assert self._thread.is_alive()

    def end(self):
        self._ends.set()
        self._thread.join()
        return self


def cut_for_a_moment(_server, cable):
    cable.cut()
    time.sleep(0.5)
    cable.mend()


def restart(server, _cable):
    server.stop()
    server.start()


def crash(server, _cable):
    server.stop(signal.SIGQUIT)  # what is in memory is lost: it begins by its log
    server.start()


@pytest.fixture(scope="module")
def server():
    """A server of these tests alone, which they end."""
    require("pg_ctlcluster")
    found = Server("fsync=off", "max_connections=8", "superuser_reserved_connections=0")
    yield found
    found.close()


@pytest.mark.parametrize("fault", [cut_for_a_moment, restart, crash])
def test_no_stored_write_is_lost_by_a_lost_connection(server, fault):
    name = fault.__name__
    server.sql(f"CREATE DATABASE {name}")
    way = Cable(server.port)
    database = Database(server.url(name, way.port), server.password_file)
    store = database.opened()
    writer = Writer(store)
    writer.goes_on()
    fault(server, way)
    writer.goes_on()
    writer.end()
    found = {x.id for x in store.leases.live()}
    assert set(writer.stored) <= found
    assert found - set(writer.stored) <= writer.found_later, "what was told not to be stored is not"
    database.close()
    way.close()


def test_too_many_connections_are_reported_with_the_remedy(server):
    server.sql("CREATE DATABASE crowded")
    database = Database(server.url("crowded"), server.password_file)
    database.opened().close()
    others = [Database(server.url("crowded"), server.password_file).plain_engine() for _ in range(8)]
    held = [one.connect() for one in others]
    store = database.store()
    with pytest.raises(Unavailable, match=r"too many clients already.* raise the server's max_connections"):
        store.open()
    for one, engine in zip(held, others, strict=True):
        one.close()
        engine.dispose()
    store.open()
    store.save([a_lease()])
    database.close()


@pytest.mark.parametrize("slow_seconds", [0.05, pytest.param(2.0, marks=pytest.mark.slow)])
def test_a_slow_network_fails_no_write(database, cable, slow_seconds):
    store = database.opened()
    store.save([a_lease()])
    cable.slow_seconds = slow_seconds
    began = time.monotonic()
    store.save([replace(a_lease(), phase=Phase.PARKED)])
    assert time.monotonic() - began < 10 * slow_seconds + 5
    cable.slow_seconds = 0.0
    assert store.leases.get("one").phase is Phase.PARKED


def test_a_blocked_read_is_cancelled_with_a_message(database, direct, monkeypatch):
    monkeypatch.setattr(postgresql, "READ_SECONDS", 0.5)
    store, engine = database.opened(), direct.plain_engine()
    with engine.connect() as other:
        other.execute(sa.text("LOCK TABLE leases IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(Unavailable, match=r"due to statement timeout\. It took longer.+pg_stat_activity shows"):
            store.leases.live()
    engine.dispose()
    assert store.leases.live() == []


async def test_a_hanging_database_server_delays_no_request_forever(database, cable, monkeypatch):
    monkeypatch.setattr(store_module, "ANSWER_SECONDS", 0.5)
    store = database.opened()
    cable.hangs = True
    with pytest.raises(Unavailable, match="has not answered for 0 s"):
        await store.read(store.leases.live)
    cable.hangs = False
    monkeypatch.undo()
    assert await store.read(store.leases.live) == []


def test_a_commit_with_a_lost_answer_is_found_by_the_next_write(database, cable, direct):
    store = database.opened()
    cable.cut_at = COMMIT
    with pytest.raises(Unavailable):
        store.save([a_lease()])
    assert direct.run("SELECT count(*) FROM leases") == [(1,)], "it is stored, and nobody could know"
    cable.mend()
    with pytest.raises(Superseded, match="The last write is stored, although"):
        store.save([a_lease("two")])
    assert [x.id for x in direct.opened().leases.live()] == ["one"]


def test_a_commit_with_a_lost_answer_is_confirmed_by_the_server(database, cable):
    store = database.opened()
    cable.cut_at = COMMIT
    cable.stays_cut = False
    store.save([a_lease()])
    assert cable.cut_at == b"", "it was cut"
    assert [x.id for x in store.leases.live()] == ["one"]
    store.save([a_lease("two")], [])


def test_after_a_failover_an_older_standby_is_refused(tmp_path):
    require("pg_ctlcluster")
    settings = (*FAST, "max_connections=20")
    first = Server(*settings)
    first.sql("CREATE DATABASE gpu")
    way = Cable(first.port)
    database = Database(first.url("gpu", way.port), first.password_file)
    store = database.opened()
    store.save([numbered("one")])
    second = Server(*settings, of=first)
    try:
        store.save([numbered("two")])
        eventually(lambda: second.sql("SELECT count(*) FROM leases", "gpu") == [["2"]])
        second.sql("SELECT pg_wal_replay_pause()")
        store.save([numbered("three")])  # the standby never gets it
        store.check_epoch()
        way.leads_to = second.port
        way.drop()
        with pytest.raises(Unavailable, match="older than what this service wrote"):
            store.leases.live()
        second.sql("SELECT pg_wal_replay_resume()")
        eventually(lambda: second.sql("SELECT count(*) FROM leases", "gpu") == [["3"]])
        assert {x.id for x in store.leases.live()} == {"one", "two", "three"}, "reads go on"
        with pytest.raises(Unavailable, match=r"in a read-only transaction.+takes no writes, as a standby"):
            store.save([numbered("four")])
        assert "takes no writes" in store.trouble
        first.stop()
        second.sql("SELECT pg_promote()")
        store.save([numbered("four")])
        assert len(store.leases.live()) == 4
    finally:
        database.close()
        way.close()
        second.close()
        first.close()


def test_an_emptied_database_is_refused_until_a_restart(database, direct):
    store = database.opened()
    store.save([a_lease()])
    for table in [row[0] for row in direct.run("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]:
        direct.run(f"DROP TABLE {table}")
    for step in (store.leases.live, lambda: store.save([a_lease("two")])):
        with pytest.raises(Unavailable, match=r"it was emptied, or another one answers. Restore it, or start the"):
            step()
    assert database.opened().leases.live() == []


def test_people_get_503_with_the_reason_while_it_is_away_and_never_500(serve, port, database, cable):
    service = serve(database=database)
    service.says("serving")
    path = "internal/leases/x/heartbeat?attempt=1"
    assert call(port, path).status_code == 410
    answers, ends = Counter(), threading.Event()

    def status(path, method="POST"):
        """Return the status of an answer, or 0 without an answer in time: the machine may be busy."""
        answer = call(port, path, method)
        return answer.status_code if answer is not None else 0

    def ask():
        while not ends.is_set():
            answers[status(path)] += 1
            answers[status("api/v1/workspaces", "GET")] += 1

    people = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for one in people:
        one.start()
    for _ in range(2):
        cable.cut()
        service.says("The store does not answer")
        eventually(lambda before=answers[503]: answers[503] > before + 8)
        cable.mend()
        eventually(lambda: status(path) == 410)
    ends.set()
    for one in people:
        one.join()
    assert not [one for one in answers if one >= 500 and one != 503], answers
    assert service.process.poll() is None
