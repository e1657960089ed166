"""The smallest catalog for pods with a GPU."""

KIND = {"match": "NVIDIA-A100*", "memory": "80GiB"}
CATALOG = {"version": 1, "gpus": {"a100": KIND}, "templates": {"lab": {"gpus": {"a100": 1}}}}
