"""The package that the service runs, for pip: so that the command line has the service's own version.

The service's address ends in no file name, by which pip knows a wheel. So pip gets a source archive: the wheel, and a
build backend of a few lines that takes it out. It needs nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from tornado.web import HTTPError

from gpuspawner import __version__
from gpuspawner.service.web.base import ErrorPages

PACKAGE = Path(__file__).parents[2]
NAME = f"gpuspawner-{__version__}"
WHEEL_NAME = f"{NAME}-py3-none-any.whl"
INFO = f"{NAME}.dist-info"
OF_WORKSPACES = ("workspace/labextension/", "workspace/jupyter-config/")
"""Files with another path in an installed package. Only Jupyter servers use them."""
OLDEST_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of each file in a zip, so that the same package always gives the same zip."""
WHEEL = "Wheel-Version: 1.0\nGenerator: gpuspawner\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "take_out"\nbackend-path = ["."]\n'
BACKEND = f"""\
import pathlib
import shutil


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    shutil.copy(pathlib.Path(__file__).with_name("{WHEEL_NAME}"), wheel_directory)
    return "{WHEEL_NAME}"
"""


@cache
def make_wheel() -> bytes:
    """Return the installed package as a wheel. Raises PackageNotFoundError where nothing tells what it needs."""
    installed = distribution("gpuspawner")
    files = {
        f"gpuspawner/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes()
        for path in sorted(PACKAGE.rglob("*"))
        if path.is_file() and _belongs(path.relative_to(PACKAGE).as_posix())
    }
    files[f"{INFO}/METADATA"] = (installed.read_text("METADATA") or "").encode()
    files[f"{INFO}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    files[f"{INFO}/WHEEL"] = WHEEL.encode()
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    return _zipped({**files, f"{INFO}/RECORD": f"{record}{INFO}/RECORD,,\n".encode()})


@cache
def make_archive() -> bytes:
    """Return the source archive of the wheel. Raises as :func:`make_wheel`."""
    files = {"pyproject.toml": PROJECT.encode(), "take_out.py": BACKEND.encode(), WHEEL_NAME: make_wheel()}
    return _zipped({f"{NAME}/{name}": content for name, content in files.items()})


def _belongs(name: str) -> bool:
    return "__pycache__" not in name and not name.startswith(OF_WORKSPACES)


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _zipped(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, OLDEST_TIME), content, zipfile.ZIP_DEFLATED)
    return written.getvalue()


class Package(ErrorPages):
    """GET without sign-in: the package, as pip reads it from an address without a file name."""

    name, make = f"{NAME}.zip", staticmethod(make_archive)

    async def prepare(self) -> None:
        """Skip authentication: the package is public, and pip cannot sign in."""

    def get(self) -> None:
        """Answer it. 404 where the service runs from a folder that is no installed package."""
        try:
            content = self.make()
        except PackageNotFoundError:
            raise HTTPError(404, reason="The service is no installed package. Install a checkout.") from None
        self.set_header("Content-Type", "application/zip")
        self.set_header("Content-Disposition", f'attachment; filename="{self.name}"')
        self.finish(content)


class WheelFile(Package):
    """GET: the wheel, for programs that want one by its name."""

    name, make = WHEEL_NAME, staticmethod(make_wheel)


ROUTES: list[Any] = [(r"/cli/?", Package), (rf"/cli/{WHEEL_NAME}", WheelFile)]
