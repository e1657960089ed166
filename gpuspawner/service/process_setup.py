"""Log format and time zone of the service's process."""

from __future__ import annotations

import logging
import os
import time
from datetime import datetime
from zoneinfo import ZoneInfo

FORMAT = "[gpu %(asctime)s %(levelname)s] %(message)s"
log = logging.getLogger("gpuspawner.catalog")


def begin_log() -> None:
    """Log to stderr. Each line has the offset of its time."""
    logging.basicConfig(level=logging.INFO, format=FORMAT, datefmt="%Y-%m-%d %H:%M:%S%z")


def show_times_in(zone: str) -> None:
    """Show all times of this process, also in the log, in a zone. The clock of a container is mostly UTC."""
    if zone == os.environ.get("TZ"):
        return
    os.environ["TZ"] = zone
    time.tzset()
    now = datetime.now(ZoneInfo(zone))
    if now.astimezone().utcoffset() != now.utcoffset():  # Python may have a package's data where the system has none
        log.warning(
            "This machine knows no time zone %s: pages show times in UTC. Install its time zone data (tzdata).", zone
        )
