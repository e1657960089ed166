"""Started by ``bin/nvidia-smi``. Adds the package to the path, because it runs without site packages."""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.realpath(f"{__file__}/../../../../.."))
    from gpuspawner.backends.local.standin.options import main

    sys.exit(main(sys.argv[1:]))
