"""The release tool: its checks before the build, and the files that it writes."""

import os
import subprocess
import sys

import pytest

from gpuspawner import __version__
from tools.install import ROOT
from tools.progress import StepError
from tools.release import check_release, main, release_notes, requested_images, require_builder, write_checksums
from tools.versions import PLACES, find_versions, write_version

CHANGELOG = f"# Changelog\n\n## {__version__} - 2026-01-02\n\n- One line.\n\n## 0.0.1 - 2025-01-02\n\n- Older.\n"


def git(folder, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """A committed copy of the files that name the version."""
    for path in (path for pattern in PLACES for path in ROOT.glob(pattern)):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Begin")
    return tmp_path


def test_every_file_that_names_the_version_names_the_same_one():
    found = find_versions()
    assert set(found.values()) == {__version__}
    assert {name.partition("/")[0].partition(":")[0] for name in found} == {
        "CITATION.cff",
        "docs",
        "gpuspawner",
        "helm",
        "hub_config",
    }


def test_the_version_is_written_everywhere_and_nothing_else_changes(checkout):
    before = find_versions(checkout)
    write_version("12.3.45", checkout)
    assert find_versions(checkout) == dict.fromkeys(before, "12.3.45")
    write_version(__version__, checkout)
    assert subprocess.run(["git", "diff", "--quiet"], cwd=checkout, check=False).returncode == 0


def test_what_is_no_version_is_refused(checkout, capsys):
    assert main(["version", "v2"]) == 1
    assert "'v2' is no version. Write three numbers" in capsys.readouterr().err
    assert set(find_versions().values()) == {__version__}


def test_images_are_those_of_a_release_unless_they_are_named(monkeypatch):
    monkeypatch.delenv("IMAGES", raising=False)
    assert requested_images() == ["service", "hub", "workspace"]
    monkeypatch.setenv("IMAGES", "service")
    assert requested_images() == ["service"]
    monkeypatch.setenv("IMAGES", "none")
    assert requested_images() == []


def test_the_notes_of_a_release_are_its_own_entry(checkout):
    assert check_release(checkout) == "- One line.\n"


@pytest.mark.parametrize(
    ("changelog", "words"),
    [
        ("# Changelog\n\n## Unreleased\n", "it has no release"),
        ("# Changelog\n\n## 0.0.1 - 2025-01-02\n", "its first release is 0.0.1"),
        (f"# Changelog\n\n## Unreleased\n\n- New.\n\n## {__version__} - 2026-01-02", "has lines above"),
        (f"# Changelog\n\n## {__version__} - 2999-01-02\n", "dates .* in the future: 2999-01-02"),
    ],
)
def test_a_changelog_without_this_release_is_refused(changelog, words):
    with pytest.raises(StepError, match=words):
        release_notes(changelog, __version__)


def test_a_chart_of_another_version_is_refused(checkout):
    chart = checkout / "helm" / "gpuspawner" / "Chart.yaml"
    chart.write_text(chart.read_text().replace(f"appVersion: {__version__}", "appVersion: 9.9.9"))
    with pytest.raises(StepError, match=r"helm/gpuspawner/Chart\.yaml:7 says version 9\.9\.9"):
        check_release(checkout)


def test_a_checkout_with_changes_is_refused(checkout):
    (checkout / "CHANGELOG.md").write_text(CHANGELOG + "\n")
    with pytest.raises(StepError, match=r"CHANGELOG\.md"):
        check_release(checkout)


def test_a_tag_on_another_commit_is_refused(checkout):
    git(checkout, "tag", f"v{__version__}")
    check_release(checkout)
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "Go on")
    with pytest.raises(StepError, match=f"The tag v{__version__} is on another commit"):
        check_release(checkout)


def test_a_machine_without_a_builder_is_told_how_to_leave_images_out(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("IMAGES", "service")
    with pytest.raises(StepError, match=r"none of them works here.* run make release IMAGES=none"):
        require_builder()
    monkeypatch.setenv("IMAGES", "none")
    require_builder()


def test_the_entry_of_a_release_has_at_most_forty_lines():
    assert len(release_notes((ROOT / "CHANGELOG.md").read_text(), __version__).splitlines()) <= 40


def test_sha256sum_accepts_the_checksums(tmp_path):
    (tmp_path / "one.whl").write_text("one")
    write_checksums(tmp_path)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "one.whl").write_text("two")
    changed = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=False, capture_output=True)
    assert changed.returncode == 1


@pytest.mark.slow  # it installs what the package and its documentation need
def test_a_clean_checkout_becomes_a_release_that_starts_a_workspace(tmp_path):
    clone = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--no-tags", ROOT, clone], check=True)
    settings = {**os.environ, "IMAGES": "none", "PYTHONPATH": ""}
    command = [sys.executable, "-m", "tools.release"]
    done = subprocess.run(command, cwd=clone, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"gpuspawner {__version__} (" in done.stdout
    assert "the workspace ended, reason idle" in done.stdout
    assert "It has no image of service, hub, workspace. Run make release without IMAGES to add them." in done.stdout
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=clone / "dist", check=True)
    name = f"gpuspawner-{__version__}"
    assert {path.name for path in (clone / "dist").iterdir()} == {
        f"{name}-py3-none-any.whl",
        f"{name}-site.tar.gz",
        f"{name}.cdx.json",
        f"{name}.md",
        f"{name}.tar.gz",
        f"{name}.tgz",
        f"gpuspawner-crds-{__version__}.tgz",
        "SHA256SUMS",
    }
