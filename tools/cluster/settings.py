"""Command lines and configuration files of each part of the cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.cluster.pki import Authority

if TYPE_CHECKING:
    from tools.cluster.cluster import Cluster, Programs

NODE = "gpu-node"
PAUSE_IMAGE = "localhost/pause:1"
ETCD = "http://127.0.0.1:2379"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
WITHOUT = ("horizontal-pod-autoscaler-controller", "persistentvolume-attach-detach-controller")
"""Controllers that compute all the time for what no cluster here has: metrics, and volumes that are attached."""
WALLS = """
ip link set lo up
ip address add "$1/30" dev eth0
ip link set eth0 up
ip route add default via "$2"
echo 1 > /proc/sys/net/ipv4/ip_forward
ip address add 10.96.0.1/32 dev lo
ip route add unreachable 10.96.0.0/16
hostname gpu-node
mount --make-rshared /
mkdir -p "$3/run" "$3/lib"
mount --bind "$3/run" /run
mount --bind "$3/lib" /var/lib
"""
"""Run inside, once: the node's address, the machine's, the cluster's folder.

No proxy for services runs. The API server is found at the first service address all the same, which is the node's own;
what asks for another one, the name server's first of all, is refused at once.
"""


def pod_network(number: int) -> str:
    """Return the addresses of the pods of cluster ``number``."""
    return f"10.244.{number}.0/24"


def write(folder: Path, address: str, number: int, cgroup: str) -> None:
    """Write the configuration files of containerd, CNI and the kubelet."""
    (folder / "cni").mkdir()
    (folder / "cni" / "10-pods.conflist").write_text(
        json.dumps(
            {
                "cniVersion": "1.0.0",
                "name": "pods",
                "plugins": [
                    {
                        "type": "bridge",
                        "bridge": "pods",
                        "isGateway": True,
                        "hairpinMode": True,
                        "ipam": {
                            "type": "host-local",
                            "ranges": [[{"subnet": pod_network(number)}]],
                            "routes": [{"dst": "0.0.0.0/0"}],
                        },
                    }
                ],
            }
        )
    )
    (folder / "containerd.toml").write_text(f"""\
version = 3
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['/usr/lib/cni']
conf_dir = '{folder}/cni'
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = '{folder}/registries'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{PAUSE_IMAGE}'
""")
    (folder / "resolv.conf").write_text("nameserver 10.96.0.10\noptions timeout:1 attempts:1\n")
    (folder / "kubelet.json").write_text(json.dumps(_kubelet(folder, address, cgroup), indent=1))


def _kubelet(folder: Path, address: str, cgroup: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": f"{folder}/pki/ca.crt"},
            "webhook": {"enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{folder}/pki/kubelet-server.crt",
        "tlsPrivateKeyFile": f"{folder}/pki/kubelet-server.key",
        "address": address,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "podLogsDir": "/var/lib/pod-logs",
        "resolvConf": f"{folder}/resolv.conf",
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        # A device that turned unhealthy is seen within this time; where nothing changed, nothing is told.
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "5m",
        # A changed ConfigMap is in its pods within this time.
        "syncFrequency": "10s",
        # A pod that exceeds the limit of a volume is evicted within this time plus ten seconds.
        "volumeStatsAggPeriod": "10s",
        "maxPods": 200,
    }


def commands(cluster: Cluster, authority: Authority, programs: Programs) -> dict[str, list[str]]:
    """Return the command of each part, in the order of their start."""
    pki = cluster.folder / "pki"
    kubernetes = programs.kubernetes
    return {
        "containerd": [str(programs.containerd / "containerd"), f"--config={cluster.folder}/containerd.toml"],
        "etcd": [
            str(programs.etcd / "etcd"),
            "--data-dir=/var/lib/etcd",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ],
        "kube-apiserver": [str(kubernetes / "kube-apiserver"), *_api_server(cluster.address, authority)],
        "kube-controller-manager": [
            str(kubernetes / "kube-controller-manager"),
            f"--kubeconfig={pki}/kube-controller-manager.kubeconfig",
            f"--service-account-private-key-file={authority.path('service-accounts', 'key')}",
            f"--root-ca-file={authority.path('ca')}",
            f"--controllers=*,{','.join(f'-{name}' for name in WITHOUT)}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--kube-api-qps=200",
            "--kube-api-burst=300",
        ],
        "kube-scheduler": [
            str(kubernetes / "kube-scheduler"),
            f"--kubeconfig={pki}/kube-scheduler.kubeconfig",
            "--leader-elect=false",
        ],
        "kubelet": [
            str(kubernetes / "kubelet"),
            f"--config={cluster.folder}/kubelet.json",
            f"--kubeconfig={pki}/kubelet.kubeconfig",
            f"--hostname-override={NODE}",
            f"--node-ip={cluster.address}",
        ],
    }


def _api_server(address: str, authority: Authority) -> list[str]:
    return [
        f"--etcd-servers={ETCD}",
        f"--advertise-address={address}",
        "--secure-port=443",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--enable-priority-and-fairness=false",
        "--allow-privileged",
        f"--client-ca-file={authority.path('ca')}",
        f"--tls-cert-file={authority.path('kube-apiserver')}",
        f"--tls-private-key-file={authority.path('kube-apiserver', 'key')}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={authority.path('ca')}",
        f"--kubelet-client-certificate={authority.path('apiserver-kubelet')}",
        f"--kubelet-client-key={authority.path('apiserver-kubelet', 'key')}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={authority.path('service-accounts', 'pub')}",
        f"--service-account-signing-key-file={authority.path('service-accounts', 'key')}",
        # For aggregated APIs, for example Kueue's.
        f"--requestheader-client-ca-file={authority.path('ca')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={authority.path('front-proxy-client')}",
        f"--proxy-client-key-file={authority.path('front-proxy-client', 'key')}",
        "--enable-aggregator-routing=true",
    ]
