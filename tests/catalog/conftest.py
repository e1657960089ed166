import pytest

from gpuspawner.catalog import Catalog, load_text

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
    idle: {below: 10%, for: 20m, sample: 30s, grace: 5m}
    also_counts: {cpu: 2h}
    keep: {times: 2, each: 1h}
    extend: {each: 2h, total: 12h, warn: [10m, 1h]}
    lifetime: 10m-48h
  night: {extends: default, idle: {for: 15m}, keep: {times: 1}, also_counts: {}, lifetime: 1h-12h}
quotas:
  each-user: {each: user, gpus: {hard: 4}}
"""


@pytest.fixture(scope="session")
def text() -> str:
    return CATALOG


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_text(CATALOG)
