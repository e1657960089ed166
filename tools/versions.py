"""The version of the package, and each file that repeats it.

``gpuspawner/__init__.py`` has the version. Charts, the extension of JupyterLab, the citation, and the names of images
and archives in pages repeat it. ``python -m tools.release version 1.1.0`` writes it everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.install import ROOT
from tools.progress import StepError

NUMBER = r"(?P<version>\d+\.\d+\.\d+)"
OF_ARTIFACT = rf"(?:/(?:service|hub|workspace)(?::|, tag: )|\bgpuspawner(?:-[a-z]+)?-){NUMBER}"
"""An image or an archive in a page or in values, such as ``registry.example.org/ml/service:1.0.0``."""
PLACES = {
    "gpuspawner/__init__.py": rf'^__version__ = "{NUMBER}"$',
    "gpuspawner/workspace/labextension/package.json": rf'^  "version": "{NUMBER}"',
    "CITATION.cff": rf"^version: {NUMBER}$",
    "helm/*/Chart.yaml": rf"^(?:version: |appVersion: |  - name: gpuspawner\n    version: ){NUMBER}$",
    "helm/*/values.yaml": OF_ARTIFACT,
    "hub_config/*.yaml": OF_ARTIFACT,
    "docs/**/*.md": OF_ARTIFACT,
}
"""The files that name the version, and how they do."""
VERSION = re.compile(NUMBER)


def find_versions(root: Path = ROOT) -> dict[str, str]:
    """Return each version that a file names, by ``path:line``."""
    found = {}
    for path, mentions in _files(root):
        for mention in mentions:
            line = mention.string.count("\n", 0, mention.start("version")) + 1
            found[f"{path.relative_to(root)}:{line}"] = mention["version"]
    return found


def write_version(version: str, root: Path = ROOT) -> list[Path]:
    """Write a version into each file that names it. Return the changed files.

    Raises:
        StepError: this is no version such as 1.2.3.
    """
    if not VERSION.fullmatch(version):
        raise StepError(f"{version!r} is no version. Write three numbers, for example 1.2.3.")
    changed = []
    for path, mentions in _files(root):
        text = path.read_text()
        for mention in reversed(mentions):  # from the end, so that earlier positions stay
            text = text[: mention.start("version")] + version + text[mention.end("version") :]
        if text != path.read_text():
            path.write_text(text)
            changed.append(path)
    return changed


def _files(root: Path) -> Iterator[tuple[Path, list[re.Match[str]]]]:
    for pattern, mention in PLACES.items():
        for path in sorted(root.glob(pattern)):
            yield path, list(re.finditer(mention, path.read_text(), re.MULTILINE))
