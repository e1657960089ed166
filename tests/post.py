"""A mail server and a webhook on this machine, real ones, for every test that something is told to."""

import asyncio
import email
import email.policy
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from aiosmtpd.smtp import SMTP


class Mailbox:
    """An SMTP server in its own thread. ``mails`` are the accepted mails; with ``refuses`` it accepts no mail."""

    def __init__(self):
        self.mails, self.refuses = [], False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._call(self._listen())
        self.port = self._server.sockets[0].getsockname()[1]

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _listen(self):
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: SMTP(self, hostname="localhost"), "127.0.0.1", 0)

    async def handle_DATA(self, _server, _session, envelope):  # noqa: N802 - as aiosmtpd calls it
        if self.refuses:
            return "554 no mail is taken here"
        self.mails.append(email.message_from_bytes(envelope.content, policy=email.policy.default))
        return "250 taken"

    def address(self, to):
        """Return apprise's address for messages to this person."""
        return f"mailto://127.0.0.1:{self.port}?from=gpu@example.org&to={to}&mode=insecure"

    def received(self, to):
        """Return the messages that a person received: (subject, text)."""
        bodies = [(mail, mail.get_body(("plain", "html"))) for mail in self.mails if to in str(mail["To"])]
        return [(str(mail["Subject"]), body.get_content()) for mail, body in bodies]

    def close(self):
        async def close():
            self._server.close()
            await self._server.wait_closed()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._call(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


class Webhook:
    """An HTTP server. ``messages`` are those it took; it answers once ``open`` is set, which it is."""

    def __init__(self):
        self.messages, self.open, self.status = [], threading.Event(), 200
        self.open.set()
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                webhook.open.wait(60)
                webhook.messages.append(message)
                self.send_response(webhook.status)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def address(self, secret="secret"):
        """Where its messages go, as apprise writes it."""
        return f"json://robot:{secret}@127.0.0.1:{self.port}/hook"

    def close(self):
        self.open.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)
