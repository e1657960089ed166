"""``make release``: build everything that a release publishes, into ``dist/``, and try it.

    python -m tools.release                   check, build and try
    python -m tools.release check             check alone: versions, changelog, clean checkout, tag
    python -m tools.release version 1.1.0     write a version into each file that names it

Images are saved as OCI archives, and the chart is pinned to the digest of the service's image. ``IMAGES="service hub"``
builds fewer of them, ``IMAGES=none`` builds no image. RELEASE.md has the steps of a release, and the commands that
publish what is built here.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from datetime import date, datetime, timezone
from pathlib import Path

from gpuspawner import __version__
from tools import images, package
from tools.cluster.clients import Helm
from tools.install import ROOT
from tools.progress import StepError, Steps, reports_failures, run_logged, say
from tools.versions import find_versions, write_version

DIST = package.DIST
CHARTS = ("gpuspawner-crds", "gpuspawner")
"""``gpuspawner-jupyterhub`` needs Zero to JupyterHub's chart, so its user packages it (docs, Zero to JupyterHub)."""
RELEASED_IMAGES = ("service", "hub", "workspace")
LOG = ROOT / ".run" / "logs" / "release.log"
HEADING = re.compile(r"^## \[?(?P<version>\d+\.\d+\.\d+)\]? - (?P<date>\d{4}-\d{2}-\d{2})$", re.MULTILINE)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SAVES = {
    "docker": ["save", "--output={archive}", "{image}"],
    "podman": ["save", "--format=oci-archive", "--output={archive}", "{image}"],
    "buildah": ["push", "--quiet", "{image}", "oci-archive:{archive}"],
}
"""How each program writes an image into an OCI archive."""


@reports_failures
def main(arguments: list[str]) -> int:
    """Check, build and try the release. Return 0 if everything succeeded."""
    steps = Steps()
    if arguments[:1] == ["version"]:
        for path in write_version("".join(arguments[1:])):
            say(str(path.relative_to(ROOT)))
        return 0
    with steps.step("Versions, changelog, checkout and tag"):
        notes = check_release(ROOT)
    if arguments == ["check"]:
        return 0
    require_builder()
    build_release(steps, notes)
    say(f"\nRelease {__version__} is in {DIST}. RELEASE.md has the commands that publish it.")
    if missing := [name for name in RELEASED_IMAGES if name not in requested_images()]:
        say(f"It has no image of {', '.join(missing)}. Run make release without IMAGES to add them.")
    return 0


def requested_images() -> list[str]:
    """Return the images to build: those of the variable IMAGES, by default all that a release has."""
    names = os.environ.get("IMAGES", " ".join(RELEASED_IMAGES)).split()
    return [] if names == ["none"] else names


def require_builder() -> None:
    """Check before anything is built that a program here builds images, if the release has any.

    Raises:
        StepError: no such program works here.
    """
    if requested_images():
        try:
            images.builder(os.environ)
        except StepError as error:
            raise StepError(f"{error} To leave images out, run make release IMAGES=none.") from error


def build_release(steps: Steps, notes: str) -> None:
    """Build wheel, source archive, bill of materials, charts, images and site, and install the wheel once."""
    with steps.step("Wheel and source archive"):
        wheel, _ = package.build(DIST)
        (DIST / f"gpuspawner-{__version__}.md").write_text(notes)
    with steps.step("Licences and bill of materials"):
        package.write_sbom(wheel)
    digest = ""
    for name in requested_images():
        with steps.step(f"Image {name} (minutes the first time)"):
            found = save_image(name, DIST)
            digest = found if name == "service" else digest
    with steps.step("Charts"):
        for chart in CHARTS:
            package_chart(ROOT / "helm" / chart, DIST, digest)
    with steps.step("Documentation site"):
        run_logged([sys.executable, "-m", "tools.docs"], LOG, f"The site is not built. {LOG} says why.")
        with tarfile.open(DIST / f"gpuspawner-{__version__}-site.tar.gz", "w:gz") as archive:
            archive.add(ROOT / "site", f"gpuspawner-{__version__}-site")
    with steps.step("A workspace with the built wheel", streams=True):
        say(f"     {package.try_on(sys.executable, wheel)}")
    with steps.step("Checksums"):
        write_checksums(DIST)


def _today() -> date:
    return datetime.now(timezone.utc).date()


def check_release(root: Path) -> str:
    """Return the release notes of this version.

    Raises:
        StepError: versions differ, the changelog has no entry, tracked files differ, or the tag is on another commit.
    """
    for file, version in find_versions(root).items():
        if version != __version__:
            raise StepError(
                f"{file} says version {version}, and gpuspawner/__init__.py says {__version__}. "
                f"Run: python -m tools.release version {__version__}"
            )
    notes = release_notes((root / "CHANGELOG.md").read_text(), __version__)
    if changed := _git(root, "status", "--porcelain", "--untracked-files=no"):
        raise StepError(f"The checkout has changes. Commit them first:\n{changed}")
    tag = f"v{__version__}"
    if _git(root, "tag", "--list", tag) and _git(root, "rev-parse", f"{tag}^{{commit}}") != _git(
        root, "rev-parse", "HEAD"
    ):
        raise StepError(f"The tag {tag} is on another commit. Raise the version, or check out the tag.")
    return notes


def release_notes(changelog: str, version: str) -> str:
    """Return the changelog's entry of ``version``, without its heading.

    Raises:
        StepError: the changelog lacks the entry, has lines above it, or dates it in the future.
    """
    found = HEADING.search(changelog)
    if found is None or found["version"] != version:
        first = f"its first release is {found['version']}" if found else "it has no release"
        raise StepError(f"CHANGELOG.md needs '## {version} - {_today().isoformat()}' at its top: {first}.")
    if "\n- " in changelog[: found.start()]:
        raise StepError(f"CHANGELOG.md has lines above {version}. Move them into its entry.")
    if date.fromisoformat(found["date"]) > _today():
        raise StepError(f"CHANGELOG.md dates {version} in the future: {found['date']}.")
    following = HEADING.search(changelog, found.end())
    return changelog[found.end() : following.start() if following else len(changelog)].strip() + "\n"


def package_chart(chart: Path, folder: Path, digest: str = "") -> Path:
    """Package a chart into ``folder``, pinned to ``digest`` of the service's image if there is one. Return the file."""
    with tempfile.TemporaryDirectory(prefix="gpuspawner-chart-") as name:
        copy = Path(name) / chart.name
        shutil.copytree(chart, copy)
        values = copy / "values.yaml"
        if digest and '  digest: ""\n' in values.read_text():
            values.write_text(values.read_text().replace('  digest: ""\n', f"  digest: {digest}\n"))
        helm = Helm(Path(name) / "helm")
        helm("package", copy, "--destination", folder)
    return next(folder.glob(f"{chart.name}-{__version__}.tgz"))


def save_image(name: str, folder: Path) -> str:
    """Build an image and save it as an OCI archive in ``folder``. Return its digest, ``sha256:...``.

    Raises:
        StepError: it is not built, or no program here saves OCI archives.
    """
    settings = os.environ
    (image,) = images.chosen({"IMAGES": name})
    build = images.builder(settings)
    hint = f"{LOG} says why. IMAGES=none leaves images out."
    program = next((word for word in build if Path(word).name in SAVES), "")
    if not program:
        raise StepError(f"Images are saved by {', '.join(SAVES)}, and BUILDER is {' '.join(build)}.")
    run_logged(images.command_of(image, settings, build), LOG, f"The image {name} is not built. {hint}")
    archive, whole = folder / f"gpuspawner-{name}-{__version__}.oci.tar", images.whole_name(name, settings)
    words = [word.format(archive=archive, image=whole) for word in SAVES[Path(program).name]]
    run_logged([*build[: build.index(program) + 1], *words], LOG, f"The image {name} is not saved. {hint}")
    with tarfile.open(archive) as content:
        index = content.extractfile("index.json")
        found = DIGEST.search(index.read().decode()) if index else None
    if found is None:
        raise StepError(f"{archive} names no digest.")
    return found[0]


def write_checksums(folder: Path) -> Path:
    """Write ``SHA256SUMS`` of all files in ``folder``, as ``sha256sum --check`` reads it. Return the file."""
    file = folder / "SHA256SUMS"
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.is_file() and path != file
    ]
    file.write_text("".join(lines))
    return file


def _git(root: Path, *arguments: str) -> str:
    answer = subprocess.run(["git", *arguments], check=False, capture_output=True, text=True, cwd=root)
    if answer.returncode:
        raise StepError(f"git {' '.join(arguments)}: {answer.stderr.strip()}")
    return answer.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
