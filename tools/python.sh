#!/bin/sh
# Prints the first Python from 3.10 to 3.13 that can make virtual environments. Run, not only found: a pyenv shim may be empty.
# A distribution's own goes first: built with profiles, it ran the tests in five sixths of the time of pyenv's default build.
own=/usr/bin/python3
for python in ${PYTHON:-$own.11 python3.11 $own.12 python3.12 $own.13 python3.13 $own.10 python3.10 $own python3}; do
    if "$python" -c 'import sys, ensurepip, venv; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; then
        echo "$python"
        exit 0
    fi
done
echo "gpuspawner needs Python 3.10 to 3.13 with its venv module, and found none." >&2
echo "Debian and Ubuntu: apt-get install python3 python3-venv. Elsewhere: make PYTHON=/path/to/python3.11 ..." >&2
exit 1
