"""Two built releases on the same store: an upgrade keeps the workspaces, and so does the way back."""

import pytest

from gpuspawner import __version__
from tools.install import ROOT
from tools.upgrade import extract_commit, install_release, try_upgrade

pytestmark = pytest.mark.slow  # it builds and installs two releases, and starts seven hubs
OLDER = "0.9.0"
MIGRATION = '''"""Workspaces have a colour."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the colour."""
    op.add_column("readings", sa.Column("colour", sa.String(64)))
'''


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("releases")
    old = install_release(folder / "old", extract_commit(folder / "source", "HEAD", OLDER))
    return old, install_release(folder / "new", ROOT)


def test_a_release_is_upgraded_and_goes_back_and_both_workspaces_stay(releases, tmp_path):
    report = try_upgrade(tmp_path / "hub", *releases)
    assert f"gpuspawner {__version__} changes nothing in it." in "\n".join(report)
    started = [line.partition(":")[0] for line in report if line.startswith(("old", "new"))]
    assert started == [f"old, {OLDER}", f"new, {__version__}", f"old again, {OLDER}"]


def test_after_a_changed_schema_the_older_release_refuses_the_store_and_takes_the_backup(releases, tmp_path):
    old, new = releases
    (versions,) = new.parents[1].glob("lib/python3.*/site-packages/gpuspawner/service/store/migrations/versions")
    (versions / "v0002_colour.py").write_text(MIGRATION)
    report = try_upgrade(tmp_path / "hub", old, new)
    (refused,) = [line for line in report if line.startswith("old, on the new schema")]
    assert f"It has schema 0002, and gpuspawner {OLDER} knows 0001 at most" in refused
    assert f"Install gpuspawner {__version__} or a later one" in refused
    assert report[-1].startswith(f"old again, {OLDER}: ada running")
