"""Started by the programs in ``bin``. Adds the package to the path, because it runs without site packages."""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.realpath(f"{__file__}/../../../../.."))
    from gpuspawner.backends.local.standin.commands import amd_smi, nvidia_smi

    sys.exit(amd_smi(sys.argv[2:]) if sys.argv[1:2] == ["amd-smi"] else nvidia_smi(sys.argv[1:]))
