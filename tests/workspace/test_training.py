"""The training loop of the documents, with the real PyTorch where it is installed: it saves in time, and goes on."""

import json
import os
import subprocess
import sys
import time

import pytest
from workspace_server import REPOSITORY

pytest.importorskip("torch")


def test_it_saves_before_the_end_that_is_announced_and_goes_on_from_there(tmp_path):
    text = (REPOSITORY / "docs" / "how-to" / "your-own.md").read_text()
    program = "# train.py" + text.partition("```python\n# train.py")[2].partition("```")[0]
    notice = tmp_path / ".gpuspawner" / "notice.json"
    notice.parent.mkdir()
    notice.write_text(json.dumps({"ends_at": time.time() + 50, "kind": "idle", "words": "It ends."}))

    def train():
        environment = {**os.environ, "HOME": str(tmp_path), "GPUSPAWNER_NOTICE": ".gpuspawner/notice.json"}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=45).stdout

    assert train().startswith("saved at step 100, ")
    resumed, saved = train().splitlines()
    assert resumed == "goes on from step 100"
    assert saved.startswith("saved at step 200, ")
