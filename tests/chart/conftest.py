"""helm, built once, renders the chart for the tests of this folder."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package: `from rendered import ...`

from rendered import Chart


@pytest.fixture(scope="session")
def chart(tmp_path_factory):
    return Chart(tmp_path_factory.mktemp("helm"))
