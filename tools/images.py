"""``make images``: build the images of ``images/`` by docker, podman or buildah, whichever is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuspawner import __version__
from tools.install import ROOT
from tools.progress import StepError, Steps, reports_failures, run_logged, say

LOG = ROOT / ".run" / "logs" / "images.log"
BUILDERS = {"docker": ["docker", "build"], "podman": ["podman", "build"], "buildah": ["buildah", "build"]}
HELP = """\
Usage: make images [IMAGES="service hub workspace workspace-pytorch workspace-tensorflow"]
                   [PREFIX=registry.example.org/ml/] [BASE=IMAGE] [HUB_BASE=IMAGE] [BUILDER="buildah build --option"]

PREFIX: what the names begin with; gpuspawner/ where it is not set.
BASE: the Debian of service and workspace, HUB_BASE: the hub's image that is added to, where not the public ones.
BUILDER: the command, with options of its own: a mirror's certificates, a storage driver."""


@dataclass(frozen=True)
class Image:
    """A folder of ``images/``. ``base`` is the variable that names what it is built on; or ``on``, an image of ours."""

    name: str
    base: str = ""
    on: str = ""


IMAGES = {
    one.name: one
    for one in (
        Image("service", base="BASE"),
        Image("hub", base="HUB_BASE"),
        Image("workspace", base="BASE"),
        Image("workspace-pytorch", on="workspace"),
        Image("workspace-tensorflow", on="workspace"),
    )
}


def builder(settings: Mapping[str, str]) -> list[str]:
    """Return the command that builds.

    Raises:
        StepError: no command that can build is installed.
    """
    if settings.get("BUILDER"):
        return settings["BUILDER"].split()
    for program, command in BUILDERS.items():
        if shutil.which(program) and (program != "docker" or _docker_answers()):
            return command
    raise StepError(
        f"Images are built by {', '.join(BUILDERS)}: none of them works here. Install one, and run it again."
    )


def _docker_answers() -> bool:
    """Return whether the daemon of docker works here. Its command alone builds nothing."""
    return subprocess.run(["docker", "info"], check=False, capture_output=True).returncode == 0


def chosen(settings: Mapping[str, str]) -> list[Image]:
    """Return the images to build, what others are built on first.

    Raises:
        StepError: there is no image of that name.
    """
    names = settings.get("IMAGES", "").split() or list(IMAGES)
    if unknown := [name for name in names if name not in IMAGES]:
        raise StepError(f"There is no image {unknown[0]}. There are: {', '.join(IMAGES)}.")
    return [image for name, image in IMAGES.items() if name in names]


def command_of(image: Image, settings: Mapping[str, str], build: Sequence[str]) -> list[str]:
    """Return the command that builds an image, from the root of the checkout."""
    base = whole_name(image.on, settings) if image.on else settings.get(image.base, "")
    return [
        *build,
        f"--file=images/{image.name}/Dockerfile",
        f"--tag={whole_name(image.name, settings)}",
        *([f"--build-arg=BASE={base}"] if base else []),
        ".",
    ]


def whole_name(name: str, settings: Mapping[str, str]) -> str:
    """Return an image's name with its tag, the package's version."""
    return f"{settings.get('PREFIX') or 'gpuspawner/'}{name}:{__version__}"


@reports_failures
def main() -> int:
    """Build each; 0 when all are there."""
    if sys.argv[1:]:
        print(HELP)
        return 0 if sys.argv[1] in {"--help", "-h"} else 2
    steps, settings = Steps(), os.environ
    build = builder(settings)
    for image in chosen(settings):
        with steps.step(f"Image {whole_name(image.name, settings)} (minutes the first time)"):
            remedy = f"The image {image.name} could not be built. Its last lines say why; all are in {LOG}."
            run_logged(command_of(image, settings, build), LOG, remedy)
    say("The images are there. Push them to your registry, and name it in the chart's values.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
