"""Images built by buildah without a daemon, from the repository's Dockerfiles, as `make images` does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nodes import ROOT

from gpuspawner import __version__

PATH = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin:/sbin:/bin"
ALONE = ["unshare", "--mount"]
"""A private mount namespace, because other tests check that no mount remains."""
NEEDED = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("buildah", path=PATH),
    reason="buildah mounts file systems: run as root, with Debian's package buildah",
)


class Buildah:
    """Calls buildah with this machine's certificates. Its images are only in ``folder``."""

    def __init__(self, folder: Path):
        (folder / "pip.conf").write_text("[global]\ncert = /run/ca.crt\ndefault-timeout = 180\n")
        (folder / "npmrc").write_text("cafile=/run/ca.crt\n")
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
        )
        self.folder = folder
        self.environment = {
            "PATH": PATH,
            "HOME": str(folder),
            "BUILDAH_ISOLATION": "chroot",
            "STORAGE_DRIVER": "overlay",
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
        home = Path("~root").expanduser()  # root has the same home in the image as here
        self._mounts = [
            "--volume=/etc/ssl/certs/ca-certificates.crt:/run/ca.crt:ro",
            f"--volume={folder}/pip.conf:/etc/pip.conf:ro",
            f"--volume={folder}/npmrc:{home}/.npmrc:ro",
        ]

    def __call__(self, *words: str) -> str:
        """Run a command of buildah's; return what it printed."""
        done = subprocess.run(
            [*ALONE, "buildah", *words],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done.stdout

    def base(self, image: tuple[str, Path]) -> str:
        """Take in an image, by its name and archive, to build on; return its name."""
        name, archive = image
        self("tag", self("pull", "--quiet", f"oci-archive:{archive}").split()[-1], name)
        archive.unlink()
        return name

    def built(self, name: str, **settings: str) -> str:
        """Build one of `images/` by `make images` with ``settings`` like BASE; return the image's full name."""
        words = [*ALONE, "buildah", "bud", *self._mounts]
        done = subprocess.run(
            [sys.executable, "-m", "tools.images"],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**self.environment, "IMAGES": name, "BUILDER": " ".join(words), **settings},
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return f"gpuspawner/{name}:{__version__}"

    def archive(self, image: str) -> tuple[str, Path]:
        """Write an image's archive for a cluster; return the name it has there, which no registry knows, and the path.

        It changes with the contents, so that no cluster takes an earlier one for it.
        """
        digest = self("inspect", "--type=image", "--format={{.FromImageID}}", image).strip()
        name = f"localhost/{image.partition(':')[0]}:{digest[:12]}"
        archive = self.folder / "image.tar"
        self("push", "--quiet", image, f"docker-archive:{archive}:{name}")
        return name, archive

    def close(self) -> None:
        """Remove every image."""
        self("rm", "--all")
        self("rmi", "--all", "--force")
