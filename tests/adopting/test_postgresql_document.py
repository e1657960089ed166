"""The commands of the page on PostgreSQL run in order with a real server."""

import os
import subprocess
import sys
from pathlib import Path

from harness import pages
from lease_builders import a_lease

from gpuspawner.service.store import Store
from tools.postgres import PASSWORD, USER, programs

REPO = Path(__file__).parents[2]
RUN = ("createdb", "gpuspawner server store", "pg_dump", "pg_restore")


def test_its_commands_copy_back_up_and_restore_a_store(postgres, tmp_path):
    lines = [line for line in pages.commands(pages.page("how-to/administrators/postgresql")) if line.startswith(RUN)]
    named = ["createdb", "gpuspawner", "pg_dump", "createdb", "pg_restore", "gpuspawner"]
    assert [line.split()[0] for line in lines] == named
    (tmp_path / "store-password").write_text(PASSWORD)
    (tmp_path / "store-password").chmod(0o600)
    (tmp_path / "gpuspawner-data").mkdir()
    store = Store(f"sqlite:///{tmp_path}/gpuspawner-data/gpuspawner.sqlite")
    store.open()
    store.save([a_lease()])
    store.close()
    server = postgres.server
    env = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": USER, "PGPASSWORD": PASSWORD}
    env |= {"PYTHONPATH": str(REPO), "PATH": f"{programs()}:{os.environ['PATH']}"}
    for line in lines:
        here = line.replace("db.example.org", f"127.0.0.1:{server.port}")
        here = here.replace("gpuspawner server store", f"{sys.executable} -m gpuspawner.cli server store")
        done = subprocess.run(
            here, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    restored = Store(server.url("gpuspawner_restored"), server.password_file)
    restored.open()
    assert (restored.leases.live(), restored.epoch) == ([a_lease()], 2)
    restored.close()
