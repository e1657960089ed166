"""POST /scheduler/changed: the scheduler that owns the queue tells, signed, that something changed there."""

from __future__ import annotations

from tornado.web import RequestHandler

from gpuspawner.core.errors import Unavailable
from gpuspawner.schedulers.http.scheduler import HttpScheduler
from gpuspawner.service.parts import Parts

PATH = "/scheduler/changed"


class Changed(RequestHandler):
    """Nothing that is said is believed: it is asked what stands, as soon as it says that something changed."""

    def initialize(self, parts: Parts) -> None:
        """Keep the service's parts."""
        self.parts = parts

    def check_xsrf_cookie(self) -> None:
        """No page sends this: a signature proves it."""

    async def post(self) -> None:
        """Answer 204 for what is signed, new and not had before; 401 for the rest."""
        scheduler = self.parts.scheduler
        if not isinstance(scheduler, HttpScheduler) or not scheduler.callback_url:
            self.refuse(404, "not_found", "No scheduler sends callbacks here: the catalog's scheduler names none.")
            return
        headers = self.request.headers
        signed, delivery = headers.get("X-Signature", ""), headers.get("X-Delivery", "")
        try:
            why = await scheduler.why_refused(signed, delivery, self.request.body)
        except Unavailable as error:
            self.refuse(503, "unavailable", str(error))
            return
        if why:
            self.refuse(401, "unauthorized", why)
            return
        scheduler.receive_callback()
        self.set_status(204)

    def refuse(self, status: int, code: str, words: str) -> None:
        """Answer as the contract does."""
        self.set_status(status)
        self.finish({"error": code, "words": words})


ROUTES = [(PATH, Changed)]
