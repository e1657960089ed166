"""The service's process shows times by the clocks of the catalog's zone: a container's own are mostly UTC."""

from __future__ import annotations

import logging
import os
import time
from datetime import datetime
from zoneinfo import ZoneInfo

log = logging.getLogger("gpuspawner.catalog")


def show_times_in(zone: str) -> None:
    """Have all clock times, the log's too, be those of a zone: UTC where the catalog names none."""
    if zone == os.environ.get("TZ"):
        return
    os.environ["TZ"] = zone
    time.tzset()
    now = datetime.now(ZoneInfo(zone))
    if now.astimezone().utcoffset() != now.utcoffset():  # Python may have a package's data where the system has none
        log.warning(
            "This machine knows no time zone %s: pages show times in UTC. Install its time zone data (tzdata).", zone
        )
