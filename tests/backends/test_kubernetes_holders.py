"""Holders of foreign GPUs, by the names that training systems give their pods."""

import pytest

from gpuspawner.backends.kubernetes.pods import MAX_HOLDER_LENGTH, holder_of


def owned(kind, name):
    return [{"apiVersion": "v1", "kind": kind, "name": name, "uid": "u", "controller": True}]


@pytest.mark.parametrize(
    ("labels", "owners", "holder"),
    [
        ({"ray.io/cluster": "nightly"}, owned("RayCluster", "nightly-x7z"), "RayCluster team-a/nightly"),
        ({"training.kubeflow.org/job-name": "bert"}, owned("PyTorchJob", "bert"), "PyTorchJob team-a/bert"),
        ({"training.kubeflow.org/job-name": "bert"}, [], "Training job team-a/bert"),
        ({"jobset.sigs.k8s.io/jobset-name": "sweep"}, owned("Job", "sweep-workers-0"), "JobSet team-a/sweep"),
        ({"leaderworkerset.sigs.k8s.io/name": "llm"}, owned("StatefulSet", "llm-0"), "LeaderWorkerSet team-a/llm"),
        ({"volcano.sh/job-name": "mpi"}, owned("Job", "mpi"), "Volcano job team-a/mpi"),
        ({"notebook-name": "mine"}, owned("StatefulSet", "mine"), "Kubeflow notebook team-a/mine"),
        ({"hub.jupyter.org/username": "ada"}, [], "Jupyter server of team-a/ada"),
        ({}, owned("Job", "train"), "Job team-a/train"),
        ({"pod-template-hash": "7d9"}, owned("ReplicaSet", "serve-7d9"), "Deployment team-a/serve"),
        ({"pod-template-hash": "7d9"}, owned("ReplicaSet", "other"), "ReplicaSet team-a/other"),
        ({}, [{"kind": "Node", "name": "n"}], "Pod team-a/p"),
        ({"ray.io/cluster": ""}, None, "Pod team-a/p"),
        (None, None, "Pod team-a/p"),
    ],
)
def test_a_holder_has_the_name_that_people_know(labels, owners, holder):
    assert holder_of({"namespace": "team-a", "name": "p", "labels": labels, "ownerReferences": owners}) == holder


def test_the_name_of_a_holder_is_bounded():
    owner = owned("<script>" * 100_000, "x")
    told = holder_of({"namespace": "team-a", "name": "p", "ownerReferences": owner})
    assert len(told) == MAX_HOLDER_LENGTH
