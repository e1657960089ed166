"""The licences of all that an installation pulls in: each must be one of the list.

Run by the installation's own Python: `PYTHON tools/licences.py`. Only the standard library is used.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distributions

ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CNRI-Python", "ISC", "MIT", "MIT-0", "PSF-2.0",
    "Python-2.0", "Unlicense", "ZPL-2.1",
    "Artistic-1.0-Perl",  # of text-unidecode, as Perl's own: that or the GPL
    "MPL-2.0",  # copyleft of its own files alone, which are used unchanged
    "LGPL-3.0-only",  # of psycopg, for PostgreSQL alone: a library that is used unchanged, and may be replaced
}  # fmt: skip
"""Licences, by SPDX, under which others' work may come along with ours."""
CALLED = {
    "apache": "Apache-2.0", "apache 2.0": "Apache-2.0", "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0", "apache software license": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0",
    "bsd": "BSD-3-Clause", "bsd license": "BSD-3-Clause", "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd-3-clause license": "BSD-3-Clause", "3-clause bsd license": "BSD-3-Clause", "new bsd": "BSD-3-Clause",
    "isc license (iscl)": "ISC", "isc license": "ISC",
    "mit license": "MIT", "the mit license": "MIT", "the mit license (mit)": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0", "mozilla public license 2.0": "MPL-2.0",
    "python software foundation license": "PSF-2.0", "psf": "PSF-2.0", "psfl": "PSF-2.0",
    "bsd 2-clause license": "BSD-2-Clause", "artistic license": "Artistic-1.0-Perl",
    "the unlicense (unlicense)": "Unlicense", "zope public license": "ZPL-2.1",
}  # fmt: skip
"""Licence texts of packages that give no SPDX name."""
TOOLS = {"pip", "setuptools", "uv", "wheel"}
"""Packages that install others, and are not part of the product."""


def licences(distribution: Distribution) -> tuple[list[str], str]:
    """Return the licences of a package by SPDX, of which any is enough; and what it writes itself."""
    metadata = distribution.metadata
    expression = next(iter(metadata.get_all("License-Expression") or []), "")
    if expression:
        return [part.strip("() ") for part in re.split(r"\bOR\b", expression)], expression
    prefix = "License :: OSI Approved :: "
    listed = [one.removeprefix(prefix) for one in metadata.get_all("Classifier") or [] if one.startswith(prefix)]
    text = next(iter(metadata.get_all("License") or []), "").strip().partition("\n")[0]
    told = [*listed, text] if text else listed or _title(distribution)
    return [CALLED.get(one.lower(), one) for one in told], "; ".join(told)


def _title(distribution: Distribution) -> list[str]:
    """Return the title of the licence text of a package that names its licence nowhere else."""
    files = [one for one in distribution.files or [] if one.name in {"LICENSE", "LICENSE.txt"}]
    texts = (" ".join(one.read_text().split()) for one in files)
    title = "Apache License Version 2.0"
    return [title] if any(text.startswith(title) for text in texts) else []


def is_allowed(licence: str) -> bool:
    """Whether each part of a licence is allowed."""
    parts = re.split(r"\bAND\b", licence)
    return all(part.strip("() ") in ALLOWED for part in parts)


def main() -> int:
    """Print each package with its licences. Return 1 if a package has no allowed licence."""
    refused = 0
    for found in sorted(distributions(), key=lambda one: one.metadata["Name"].lower()):
        name = found.metadata["Name"]
        if name.lower() in TOOLS:
            continue
        named, written = licences(found)
        good = any(map(is_allowed, named))
        refused += not good
        print(f"{'' if good else 'NOT ALLOWED: '}{name} {found.version}: {written or 'no licence'}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
