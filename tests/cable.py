"""A proxy between a service and its database. It can be slow, cut connections, or lead to another server."""

import contextlib
import socket
import threading
import time


class Cable:
    """Passes on what is sent to ``port``, from its own; each fault is an attribute."""

    def __init__(self, port):
        self.leads_to = port
        self.slow_seconds = 0.0
        self.is_cut = False
        self.hangs = False
        """Whether data waits in the proxy. It is delivered after this flag is cleared."""
        self.cut_at = b""
        """Once this is sent, it is passed on, and the cable cut before the answer."""
        self.stays_cut = True
        """Whether new connections fail after that cut."""
        self._unheard = set()
        self._open = set()
        self._listens = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listens.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Close all connections and refuse new ones."""
        self.is_cut = True
        self.drop()

    def drop(self):
        """Close all connections."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def mend(self):
        self.is_cut, self.cut_at = False, b""

    def close(self):
        self.cut()
        self._listens.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listens.accept()
                server = None if self.is_cut else self._server()
                if server is None:
                    client.close()
                    continue
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open |= {client, server}
                for one, other, asks in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass, args=(one, other, asks), daemon=True).start()

    def _server(self):
        with contextlib.suppress(OSError):
            return socket.create_connection(("127.0.0.1", self.leads_to))

    def _pass(self, source, target, asks):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if asks:
                    time.sleep(self.slow_seconds)
                while self.hangs:
                    time.sleep(0.05)
                if asks and self.cut_at and self.cut_at in data:
                    self.cut_at = b""
                    self._unheard.add(target)
                    target.sendall(data)
                    time.sleep(0.3)  # the server does it
                    self.is_cut = self.stays_cut
                    self.drop()
                    break
                if source in self._unheard:
                    continue
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()
