"""The training loop of the documents, with the real PyTorch where it is installed: it saves in time, and goes on."""

import json
import os
import subprocess
import sys
import time

import pytest
from harness import pages

pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")


def test_training_saves_before_an_announced_end_and_resumes(tmp_path):
    shown = pages.blocks(pages.page("how-to/users/save-before-the-end"), "python")
    program = next(one for one in shown if one.startswith("# train.py"))
    notice = tmp_path / ".gpuspawner" / "notice.json"
    notice.parent.mkdir()
    notice.write_text(json.dumps({"ends_at": time.time() + 50, "kind": "idle", "words": "It ends."}))

    def train():
        environment = {**os.environ, "HOME": str(tmp_path), "GPUSPAWNER_NOTICE": ".gpuspawner/notice.json"}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=45).stdout

    assert train().startswith("saved at step 100, ")
    resumed, saved = train().splitlines()
    assert resumed == "continues at step 100"
    assert saved.startswith("saved at step 200, ")
