"""Stands for ``systemd-run`` and ``systemctl``: units are processes of this machine."""

from pathlib import Path

RUN = """#!/bin/sh
# Notes its arguments, then starts the command as systemd does: by the unit's environment file, in its own session.
unit=$2
printf '%s\\n' "$@" > "{folder}/$unit.arguments"
while [ $# -gt 0 ]; do
    case $1 in
        --unit|--working-directory) [ "$1" = --unit ] || home=$2; shift 2;;
        --property=EnvironmentFile=*) file=${{1#--property=EnvironmentFile=}}; cp "$file" "{folder}/$unit.env"; shift;;
        --*) shift;;
        *) break;;
    esac
done
env -i HOME="$home" setsid sh -c '
set -a; . "$0"; set +a
echo $$ > "$1"; shift
exec "$@"' "{folder}/$unit.env" "{folder}/$unit.pid" "$@" > "{folder}/$unit.log" 2>&1 &
while [ ! -s "{folder}/$unit.pid" ]; do sleep 0.05; done
"""
CONTROL = """#!/bin/sh
pid=$(cat "{folder}/$2.pid" 2>/dev/null)
case $1 in
    --version) echo 'systemd 252 (252.30)';;
    is-active) [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null;;
    is-failed) exit 1;;
    stop) [ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null; rm -f "{folder}/$2.pid";;
esac
"""


def install(folder: Path) -> Path:
    """Write both programs; return the folder for PATH, where each unit leaves its arguments and environment, too."""
    folder.mkdir()
    for name, text in (("systemd-run", RUN), ("systemctl", CONTROL)):
        (folder / name).write_text(text.format(folder=folder))
        (folder / name).chmod(0o755)
    return folder
