"""Catalogs for pods: the smallest with a GPU, and one with sizes."""

from gpuspawner.catalog import load_text

KIND = {"match": "NVIDIA-A100*", "memory": "80GiB"}
CATALOG = {"version": 1, "gpus": {"a100": KIND}, "templates": {"lab": {"gpus": {"a100": 1}}}}
SIZED = load_text("""
version: 1
gpus: {a100: {match: A100, memory: 80GiB}}
templates:
  lab:
    gpus: {a100: 1-2}
    bounds: {cpu: 1-16, memory: 1GiB-64GiB}
    default: {gpu: none, cpu: 8, memory: 16GiB}
    guarantee: {cpu: 25%, memory: 50%}
  whole: {extends: lab, title: Whole, guarantee: {cpu: 100%}}
  usual: {gpus: {a100: 1}, bounds: {cpu: 0.5-1}, default: {gpu: none, cpu: 0.5, memory: 1GiB}}
""")
