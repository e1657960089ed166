"""The service's log: its format, the time zone of the process, and one line for each step of a lease."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from zoneinfo import ZoneInfo

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases.lease import WAITING, Lease, Phase
from gpuspawner.core.leases.reports import sanitize_text
from gpuspawner.core.text_fields import LOG_FORMATS
from gpuspawner.core.units import show_duration

TEXT, JSON = LOG_FORMATS
TEXT_FORMAT = "[gpu %(asctime)s %(levelname)s] %(message)s"


class JsonFormatter(logging.Formatter):
    """Writes each line as one JSON object: time, level, logger, message, and the fields of a known event.

    Steps of leases, and outages of :mod:`gpuspawner.backends.base`, have ``fields``.
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
    """Return whether a line has no session ID. JupyterHub logs the ID with each XSRF cookie, at level INFO."""
    return not str(record.msg).startswith("Setting new xsrf cookie")


def set_up_log(form: str = TEXT) -> None:
    """Log to standard error in this format, one of LOG_FORMATS. Call it again for another format."""
    handler = logging.StreamHandler()
    text = logging.Formatter(TEXT_FORMAT, datefmt="%Y-%m-%d %H:%M:%S%z")
    handler.setFormatter(JsonFormatter() if form == JSON else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("tornado.application").addFilter(_has_no_session)


def show_times_in(zone: str) -> None:
    """Show all times of this process, also in the log, in a zone. The zone of a container is mostly UTC."""
    if zone == os.environ.get("TZ"):
        return
    os.environ["TZ"] = zone
    time.tzset()
    now = datetime.now(ZoneInfo(zone))
    if now.astimezone().utcoffset() != now.utcoffset():  # the system may lack data that a Python package has
        logging.getLogger("gpuspawner.catalog").warning(
            "This machine knows no time zone %s: pages show times in UTC. Install its time zone data (tzdata).", zone
        )


log = logging.getLogger("gpuspawner.leases")

GRANT, WAIT, STOP, END, REFUSAL = "grant", "wait", "stop", "end", "refusal"
LONGEST_ASKED = 60
"""The longest logged GPU type of a refused request. Users can write anything."""


def step_of(before: Lease | None, after: Lease) -> tuple[str, str]:
    """Return the step that a lease took, and the reason. Both are empty for a step that is not logged.

    Args:
        before: the lease as it was stored before, None for a new lease.
        after: the lease as it is stored now.
    """
    phase = None if before is None else before.phase
    if after.phase is Phase.ENDED:
        return (END, _reason_of_end(after)) if before is not None else ("", "")  # a later change of an ended lease
    if after.phase is Phase.STOPPING and phase is not Phase.STOPPING:
        return STOP, _reason_of_end(after)
    if after.phase is Phase.RESERVED and phase is not Phase.RESERVED:
        return GRANT, f"after {show_duration(max(0.0, (after.granted_at or after.asked_at) - after.asked_at))}"
    return _wait_of(before, after) if after.phase in WAITING else ("", "")


def _wait_of(before: Lease | None, after: Lease) -> tuple[str, str]:
    rule, known = after.wait_reason, None if before is None else before.wait_reason
    if rule is not None and (known is None or known.rule != rule.rule):
        return WAIT, f"{rule.rule}: {rule.words}"
    if before is None or before.phase not in WAITING:
        return WAIT, after.message or "for its turn"
    return "", ""


def log_step(before: Lease | None, after: Lease, newest: Lease | None) -> None:
    """Log the step of a lease that was stored.

    Args:
        before: see :func:`step_of`.
        after: see :func:`step_of`.
        newest: the lease after later steps, which are not stored yet; None if it has ended.
    """
    step, reason = step_of(before, after)
    if not step or (step == WAIT and (newest is None or newest.phase not in WAITING)):
        return  # granted before the wait was stored
    reason = sanitize_text(reason)
    shown = before if before is not None and not after.slots else after  # an ended lease holds no GPUs
    gpus = [slot.gpu for slot in shown.slots]
    request = after.request
    asked = f"{request.count} {shown.kind}" if request.gpu else "no GPU"
    fields = {
        "event": step,
        "lease": after.id,
        "user": after.user,
        "server": after.key.server,
        "gpu": shown.kind,
        "count": request.count if request.gpu else 0,
        "gpus": gpus,
        "team": request.team,
        "by": after.ended_by,
        "reason": reason,
    }
    named = f"{after.user}/{after.key.server}" if after.key.server else after.user
    where = f" on {', '.join(gpus)}" if gpus else ""
    log.info("%s: lease %s of %s, %s%s: %s", step, after.id, named, asked, where, reason, extra={"fields": fields})


@contextmanager
def refusals_logged(user: str, server: str, gpu: object) -> Iterator[None]:
    """Log a refused request. ``gpu`` is the kind as its user wrote it."""
    try:
        yield
    except RequestRefused as error:
        asked = sanitize_text(f"{gpu}"[:LONGEST_ASKED]) if gpu else "no GPU"
        fields = {"event": REFUSAL, "user": user, "server": server, "gpu": asked, "reason": str(error)}
        named = f"{user}/{server}" if server else user
        log.info("%s: a request of %s, %s: %s", REFUSAL, named, asked, error, extra={"fields": fields})
        raise


def _reason_of_end(lease: Lease) -> str:
    reason = lease.reason.value if lease.reason is not None else "unknown"
    by = f" (by {lease.ended_by})" if lease.ended_by else ""
    return f"{reason}{by}: {lease.message}" if lease.message else f"{reason}{by}"
