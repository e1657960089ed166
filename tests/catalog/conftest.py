import pytest

from gpuspawner.catalog import Catalog, load_text
from gpuspawner.core.errors import CatalogError

CATALOG = """\
version: 1
gpus:
  a100: {title: A100 80 GB, match: NVIDIA A100*, memory: 80GiB, compute: 8.0, price: 2.10}
  t4: {match: Tesla T4, memory: 16GiB}
  half: {of: a100, shares: 2}
simulated: {a100: 4, t4: 2}
templates:
  pytorch:
    title: PyTorch
    gpus: {a100: 1-4, t4: 1, half: 1}
    bounds: {cpu: 2-32, memory: 8GiB-256GiB, lifetime: 30m-24h}
    default: {gpu: a100, count: 2, cpu: 8, memory: 64GiB, lifetime: 8h}
  pytorch-4x: {extends: pytorch, title: Four at once, gpus: {a100: 4}, policy: night}
  cpu:
policies:
  default:
    mode: warn
    idle: {below: 10%, for: 20m, sample: 30s, grace: 5m, start_up: 90s, soft: 2h}
    also_counts: [kernel, cpu, editor]
    activity: {none_for: 3h, grace: 15m}
    keep: {times: 2, each: 1h}
    extend: {each: 2h, total: 12h, warn: [10m, 1h]}
    lifetime: 10m-48h
  night:
    {extends: default, idle: {for: 15m}, keep: {times: 1}, activity: {grace: 5m}, also_counts: [], lifetime: 1h-12h}
quotas:
  each-user: {each: user, gpus: {hard: 4}}
"""


HEAD = """\
version: 1
gpus:
  a100: {match: NVIDIA A100*, memory: 80GiB}
templates:
  lab: {gpus: {a100: 1-4}}
"""


@pytest.fixture(scope="session")
def text() -> str:
    return CATALOG


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_text(CATALOG)


@pytest.fixture(scope="session")
def head() -> str:
    """Return a small catalog of five lines, right, to which entries can be appended: it ends within `templates`."""
    return HEAD


@pytest.fixture(scope="session")
def problems_of():
    """Return a function from a wrong catalog's text to its problems, each as ``line entry: wrong. right``."""

    def problems(text: str) -> list[str]:
        with pytest.raises(CatalogError) as caught:
            load_text(text, "c.yaml")
        lines = str(caught.value).splitlines()
        assert [str(problem) for problem in caught.value.problems] == lines[:-1]
        assert all(line.startswith("c.yaml:") for line in lines[:-1])
        return [line.removeprefix("c.yaml:").replace(": ", " ", 1) for line in lines[:-1]]

    return problems
