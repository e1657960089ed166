"""Debian's Prometheus for tests, on a port of its own."""

import subprocess
from contextlib import contextmanager

import yaml
from harness.programs import require
from tornado.testing import bind_unused_port


@contextmanager
def prometheus(folder, *jobs, rule_files=()):
    """Run Prometheus with these jobs, which it scrapes every second. Yield its address."""
    socket, port = bind_unused_port()
    socket.close()
    config = {
        "global": {"scrape_interval": "1s"},
        "rule_files": [str(file) for file in rule_files],
        "scrape_configs": list(jobs),
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        require("prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
