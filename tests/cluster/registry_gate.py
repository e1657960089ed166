"""A gate before the tests' open registry: ``registry_gate.py GATE``.

Under ``slow/`` no blob comes whole as long as there is a file GATE; under ``busy/`` nothing comes at all, as from a
registry that is asked too often.
"""

from __future__ import annotations

import shutil
import sys
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT, OPEN_PORT = 5999, 5998


class Gate(BaseHTTPRequestHandler):
    """Passes on what containerd asks of the open registry."""

    gate = Path()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path.startswith("/v2/busy/"):
            self.send_response(429)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        connection = HTTPConnection("127.0.0.1", OPEN_PORT)
        connection.request(self.command, self.path, headers=dict(self.headers))
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        if self.path.startswith("/v2/slow/") and "/blobs/" in self.path and answer.length:
            self.wfile.write(answer.read(answer.length // 2))
            while self.gate.exists():
                time.sleep(0.1)
        shutil.copyfileobj(answer, self.wfile, 1 << 20)
        connection.close()


if __name__ == "__main__":
    Gate.gate = Path(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", PORT), Gate).serve_forever()
