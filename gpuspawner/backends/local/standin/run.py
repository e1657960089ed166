"""What ``bin/nvidia-smi`` starts: finds the package beside itself, since it runs without site packages."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[4]))
    from gpuspawner.backends.local.standin.options import main

    sys.exit(main(sys.argv[1:]))
