"""A Kubernetes backend over the API server of kube_api, with the kinds of GPU that tests ask for."""

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.fleet import cluster_kinds
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.gpus.fleet import GpuKind

HUB = "h" * 32
GIB = 2**30
KINDS = cluster_kinds(
    {
        kind.name: kind
        for kind in (
            GpuKind("a100", "A100", 80 * GIB, match="*A100*80GB"),
            GpuKind("half", "Half", 40 * GIB, of="a100", shares=2),
            GpuKind("slice", "Slice", 10 * GIB, resource="nvidia.com/mig-1g.10gb"),
        )
    }
)


def make_backend(kubeconfig, **settings):
    return KubernetesBackend(KINDS.values(), HUB, ClusterSettings("jhub", kubeconfig, **settings))
