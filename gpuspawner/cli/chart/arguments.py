"""What the commands of the chart take."""

from __future__ import annotations

from typing import Any

from gpuspawner.cli.adopting.arguments import add_cluster

VALUES_HELP = """\
Prints the values that add GPU workspaces to a release of Zero to JupyterHub, beside which the chart gpuspawner is
installed. They replace none of its homes, volumes, images, profiles or limits. helm replaces lists whole: so tell
which values the release has, and its own entries are kept beside ours.

  helm get values jhub --namespace jhub --output yaml > hub.yaml
  gpuspawner z2jh-values --values hub.yaml > gpu.yaml
  helm upgrade jhub jupyterhub/jupyterhub --version VERSION --namespace jhub --values hub.yaml --values gpu.yaml

VERSION is the one that the release has, as `helm list --namespace jhub` shows it: without it helm takes the newest.

To leave: the same upgrade without gpu.yaml, then helm uninstall gpuspawner. Servers that run go on.
"""
CRD_HELP = """\
Prints what the chart gpuspawner-crds holds: DevGPUVMRequest, DevGPUVMTemplate, DevGPUVMLifecyclePolicy and
DevGPUVMQuota, and the policy by which nobody writes a request for others.

  gpuspawner crd | kubectl apply --server-side --filename -

With --release-finalizers it prints none. It takes from each DevGPUVMRequest what keeps it until its workspace has
ended: to leave, where the service is gone or has customResources.enabled=false. No workspace stops. The chart
gpuspawner does so itself when it is uninstalled, or has them no more.

  gpuspawner crd --release-finalizers --namespace jhub          how many there are
  gpuspawner crd --release-finalizers --namespace jhub --yes
"""


def add_chart(commands: Any, raw: type) -> None:
    """Add the commands. ``raw`` is the formatter that leaves texts as they are."""
    parser = commands.add_parser(
        "z2jh-values",
        help="print the values that add GPU workspaces to Zero to JupyterHub",
        description=VALUES_HELP,
        formatter_class=raw,
    )
    parser.add_argument(
        "--name", default="gpuspawner", help="of the service, as its release is called (default: %(default)s)"
    )
    parser.add_argument("--values", metavar="FILE", help="the values that the hub's release has, - for standard input")
    parser.add_argument("--catalog", metavar="FILE", help="the catalog: have the chart pull its templates' images")
    parser.add_argument("--service-url", metavar="URL", help="where hub and workspaces reach it (default: by its name)")
    package = parser.add_mutually_exclusive_group()
    package.add_argument(
        "--image", metavar="IMAGE", help="which brings the package to the hub's own image (default: the service's)"
    )
    package.add_argument("--hub-image", metavar="IMAGE", help="the hub's, where one has the package in it")
    parser.set_defaults(run="gpuspawner.cli.chart.z2jh_values:print_values")
    making = commands.add_parser("kubernetes-secret", help="make or remove Secrets with a random text (the chart)")
    making.add_argument("action", choices=["make", "remove"])
    making.add_argument("names", metavar="NAME", nargs="+", help="a Secret: its key `secret` has 64 random digits")
    making.set_defaults(run="gpuspawner.cli.chart.secret:kubernetes_secret")
    crd = commands.add_parser(
        "crd",
        help="print the custom resources' definitions and their admission policy (Kubernetes)",
        description=CRD_HELP,
        formatter_class=raw,
    )
    crd.add_argument(
        "--release-finalizers",
        dest="run",
        action="store_const",
        const="gpuspawner.cli.chart.finalizers:release",
        default="gpuspawner.cli.chart.crd:print_crds",
        help="have no request wait for its workspace's end any more",
    )
    crd.add_argument("--namespace", metavar="NAME", default="jhub", help="the requests' (default: %(default)s)")
    crd.add_argument("--yes", action="store_true", help="do it; without it what would be done is said")
    add_cluster(crd)
