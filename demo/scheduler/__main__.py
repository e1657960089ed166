"""Starts the reference scheduler: `python -m demo.scheduler`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import fields
from pathlib import Path

from demo.scheduler.inventory import DEFAULT, Inventory
from demo.scheduler.life import Server
from demo.scheduler.records import Settings
from demo.scheduler.server import listen


def main(arguments: list[str]) -> int:
    """Serve until it is ended."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.scheduler",
        description="A batch scheduler in memory that speaks docs/scheduler.openapi.yaml. / shows its queue.",
    )
    parser.add_argument("--port", type=int, default=9470, help="on 127.0.0.1; 9470 by itself")
    parser.add_argument("--token-file", type=Path, help="file with the token that clients must send; default: no token")
    parser.add_argument("--inventory", type=Path, help="a YAML file of clusters, nodes and GPUs; an example by itself")
    for one in fields(Settings):
        name = f"--{one.name.replace('_', '-')}"
        parser.add_argument(name, type=float, default=one.default, help=f"{one.default} by itself")
    told = parser.parse_args(arguments)
    inventory = Inventory.read(told.inventory.read_text() if told.inventory else DEFAULT)
    settings = Settings(**{one.name: getattr(told, one.name) for one in fields(Settings)})
    token = told.token_file.read_text().strip() if told.token_file else ""
    asyncio.run(serve(inventory, settings, token, told.port))
    return 0


async def serve(inventory: Inventory, settings: Settings, token: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    server = Server(inventory, settings, token)
    living = asyncio.ensure_future(server.live())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, living.cancel)
    listen(server, port)
    print(f"The reference scheduler listens on http://127.0.0.1:{port}/, which shows its queue.", flush=True)
    await asyncio.wait([living])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
