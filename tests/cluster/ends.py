"""Helpers for the tests of exits: a server that ends on request, and the page on which its user reads the reason."""

SERVER = """
import http.server, os, signal, sys, threading, time


def obey():
    while True:
        for word, act in ACTS.items():
            if os.path.exists(f"/tmp/{word}"):
                act()
        time.sleep(0.1)


def eat():
    eaten = []
    while True:
        eaten.append(b"x" * 2**24)


def fill():
    with open("/scratch/data", "wb") as data:
        data.write(b"x" * 2**23)
    time.sleep(3600)


ACTS = {"quit": lambda: os._exit(0), "crash": lambda: os._exit(3), "eat": eat, "fill": fill}
if "stays" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "ends" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
threading.Thread(target=obey, daemon=True).start()
http.server.ThreadingHTTPServer(("", 8888), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
"""Ends in good order, with exit code 3, or by using all memory, where /tmp has quit, crash or eat; writes 8 MiB to
/scratch where it has fill. With the argument ``stays`` it lives through SIGTERM, as JupyterLab does while kernels
save; with ``ends`` it ends at once, as JupyterLab does without kernels."""


def told(hub, user):
    """The text of the page that a user sees at the address of a workspace that ended."""
    return hub.login(user).get(f"{hub.url}/hub/user/{user}/", timeout=60).text


def tell(hub, user, word):
    """Have the server of a user end by this word of `SERVER`."""
    hub.cluster.run_in(hub.namespace, hub.pod(user).metadata.name, "touch", f"/tmp/{word}")
