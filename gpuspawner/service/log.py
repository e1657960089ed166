"""The form of the service's log, lines for people or JSON objects, and the time zone of its process."""

from __future__ import annotations

import json
import logging
import os
import time
from datetime import datetime
from zoneinfo import ZoneInfo

from gpuspawner.core.text_fields import LOG_FORMATS

TEXT, JSON = LOG_FORMATS
TEXT_FORMAT = "[gpu %(asctime)s %(levelname)s] %(message)s"


class JsonFormatter(logging.Formatter):
    """Writes each line as one JSON object: time, level, logger, message, and the fields of a known event.

    A line of :mod:`gpuspawner.service.lease_log` or :mod:`gpuspawner.backends.base` has its ``fields``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object. The time is ISO 8601 in the process's zone, with its offset."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _has_no_session(record: logging.LogRecord) -> bool:
    """Return whether a line has no session ID. JupyterHub logs one with each XSRF cookie, at level INFO."""
    return not str(record.msg).startswith("Setting new xsrf cookie")


def begin_log(form: str = TEXT) -> None:
    """Log to standard error in this form, one of LOG_FORMATS. It may be called again for another form."""
    handler = logging.StreamHandler()
    text = logging.Formatter(TEXT_FORMAT, datefmt="%Y-%m-%d %H:%M:%S%z")
    handler.setFormatter(JsonFormatter() if form == JSON else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("tornado.application").addFilter(_has_no_session)


def show_times_in(zone: str) -> None:
    """Show all times of this process, also in the log, in a zone. The clock of a container is mostly UTC."""
    if zone == os.environ.get("TZ"):
        return
    os.environ["TZ"] = zone
    time.tzset()
    now = datetime.now(ZoneInfo(zone))
    if now.astimezone().utcoffset() != now.utcoffset():  # the system may lack data that a Python package has
        logging.getLogger("gpuspawner.catalog").warning(
            "This machine knows no time zone %s: pages show times in UTC. Install its time zone data (tzdata).", zone
        )
