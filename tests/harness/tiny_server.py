"""A small single-user server that answers the hub as jupyterhub-singleuser does, and starts in 0.1 s."""

import contextlib
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse


class Handler(BaseHTTPRequestHandler):
    opened = False

    def do_GET(self):
        Handler.opened |= self.headers.get("Sec-Fetch-Mode") == "navigate"
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", os.environ.get("TINY_HUB_VERSION", "6.0"))
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def tell():
    """Write the file of our Jupyter extension once a second, without a busy kernel."""
    from gpuspawner.workspace.probe_reports import KernelFile  # noqa: PLC0415 - few tests ask for it, and it is slow to load

    file = KernelFile()
    while True:
        file.write([], opened=Handler.opened)
        time.sleep(1)


def main():
    if (Path.home() / "tells").exists():
        threading.Thread(target=tell, daemon=True).start()
    if (Path.home() / "fails").exists():
        sys.exit(3)
    url = urlparse(os.environ["JUPYTERHUB_SERVICE_URL"])
    with contextlib.suppress(KeyboardInterrupt):  # how the hub's local spawner stops a server
        ThreadingHTTPServer((url.hostname, url.port), Handler).serve_forever()


main()
