"""A DRA driver of simulated GPUs: a process of the node that speaks the kubelet's real interface, `dra/v1`.

It reads one JSON file, again for each claim:

    {"driver": "gpu.nvidia.com", "kubectl": program,
     "devices": {name in the ResourceSlice: {"board": "GPU-...", "id": "MIG-...", "mig": "1g.10gb"}, ...},
     "gpus": folder of simulated boards, "files": where a container finds them,
     "mounts": {path in the container: path on the node}}

A claim's container gets what NVIDIA's driver gives it by the Container Device Interface (CDI): one file for each claim.
ResourceSlices are posted by `tools.cluster.standin_gpus`. It is run as a module, with grpcio and protobuf installed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from tools.cluster.device_plugin import define_messages, variables

KUBELET = Path("/var/lib/kubelet")
CDI = Path("/var/run/cdi")
CDI_KIND = "k8s.gpu.nvidia.com/claim"
REGISTRATION = "pluginregistration"
PLUGIN = "k8s.io.kubelet.pkg.apis.dra.v1"
READ_SECONDS = 10
# The parts of the interfaces that are used here: field numbers and types are Kubernetes'.
INFO = define_messages(
    {
        "InfoRequest": [],
        "PluginInfo": [
            (1, "type", "string"),
            (2, "name", "string"),
            (3, "endpoint", "string"),
            (4, "supported_versions", "*string"),
        ],
        "RegistrationStatus": [(1, "plugin_registered", "bool"), (2, "error", "string")],
        "RegistrationStatusResponse": [],
    },
    REGISTRATION,
)
TYPES = define_messages(
    {
        "Claim": [(1, "namespace", "string"), (2, "uid", "string"), (3, "name", "string")],
        "Claims": [(1, "claims", "*Claim")],  # both requests
        "Device": [
            (1, "request_names", "*string"),
            (2, "pool_name", "string"),
            (3, "device_name", "string"),
            (4, "cdi_device_ids", "*string"),
            (5, "share_id", "string"),
        ],
        "Prepared": [(1, "devices", "*Device"), (2, "error", "string")],
        "PreparedClaim": [(1, "key", "string"), (2, "value", "Prepared")],  # how a map's entries are sent
        "PreparedClaims": [(1, "claims", "*PreparedClaim")],
        "Unprepared": [(1, "error", "string")],
        "UnpreparedClaim": [(1, "key", "string"), (2, "value", "Unprepared")],
        "UnpreparedClaims": [(1, "claims", "*UnpreparedClaim")],
    },
    PLUGIN,
)


def prepare(settings: Path, asked: Any) -> Any:
    """Return the devices for each claim's containers, with one CDI file for each claim."""
    told = json.loads(settings.read_text())
    entries = []
    for claim in asked.claims:
        try:
            prepared = TYPES["Prepared"](devices=_prepared(told, claim))
        except (OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
            prepared = TYPES["Prepared"](error=f"{claim.namespace}/{claim.name}: {error!r}")
        entries.append(TYPES["PreparedClaim"](key=claim.uid, value=prepared))
    return TYPES["PreparedClaims"](claims=entries)


def unprepare(_settings: Path, asked: Any) -> Any:
    """Take each claim's file away."""
    for claim in asked.claims:
        _file(claim.uid).unlink(missing_ok=True)
    entries = [TYPES["UnpreparedClaim"](key=claim.uid, value=TYPES["Unprepared"]()) for claim in asked.claims]
    return TYPES["UnpreparedClaims"](claims=entries)


def _prepared(told: Mapping[str, Any], claim: Any) -> list[Any]:
    command = [told["kubectl"], "get", "resourceclaim", claim.name, f"--namespace={claim.namespace}", "--output=json"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=READ_SECONDS).stdout
    results = json.loads(text)["status"]["allocation"]["devices"]["results"]
    own = [one for one in results if one["driver"] == told["driver"]]
    CDI.mkdir(parents=True, exist_ok=True)
    partial = _file(claim.uid).with_suffix(".partial")
    partial.write_text(json.dumps(_cdi(told, claim.uid, [told["devices"][one["device"]] for one in own])))
    partial.rename(_file(claim.uid))
    names = [f"{CDI_KIND}={claim.uid}"]
    return [
        TYPES["Device"](
            request_names=[one["request"]],
            pool_name=one["pool"],
            device_name=one["device"],
            cdi_device_ids=names if number == 0 else [],
            **({"share_id": one["shareID"]} if "shareID" in one else {}),
        )
        for number, one in enumerate(own)
    ]


def _cdi(told: Mapping[str, Any], uid: str, devices: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    mounts = [(told["files"], told["gpus"], "rw"), *((inside, path, "ro") for inside, path in told["mounts"].items())]
    edits = {
        "env": [f"{name}={value}" for name, value in variables(devices, told["files"]).items()],
        "mounts": [
            {"containerPath": inside, "hostPath": path, "options": [how, "nosuid", "bind"]}
            for inside, path, how in mounts
        ],
    }
    return {"cdiVersion": "0.6.0", "kind": CDI_KIND, "devices": [{"name": uid, "containerEdits": edits}]}


def _file(uid: str) -> Path:
    return CDI / f"k8s.gpu.nvidia.com-claim_{uid}.json"


def _server(socket: Path, service: str, methods: Mapping[str, tuple[Any, Callable[[Any], Any]]]) -> grpc.Server:
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(4))

    def handler(kind: Any, answer: Callable[[Any], Any]) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            lambda asked, _context: answer(asked), kind.FromString, lambda answered: answered.SerializeToString()
        )

    handlers = {name: handler(*how) for name, how in methods.items()}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    return server


def serve(settings: Path) -> None:
    """Serve until told to end. The kubelet watches its folder of registrations, also one that was started again."""
    driver = json.loads(settings.read_text())["driver"]
    socket = KUBELET / "plugins" / driver / "dra.sock"
    plugin = {
        "NodePrepareResources": (TYPES["Claims"], lambda asked: prepare(settings, asked)),
        "NodeUnprepareResources": (TYPES["Claims"], lambda asked: unprepare(settings, asked)),
    }
    info = INFO["PluginInfo"](type="DRAPlugin", name=driver, endpoint=str(socket), supported_versions=["v1.DRAPlugin"])
    registration = {
        "GetInfo": (INFO["InfoRequest"], lambda _asked: info),
        "NotifyRegistrationStatus": (INFO["RegistrationStatus"], registered),
    }
    registry = KUBELET / "plugins_registry" / f"{driver}-reg.sock"
    servers = [  # the list keeps the servers alive: an unreferenced server ends
        _server(socket, f"{PLUGIN}.DRAPlugin", plugin),
        _server(registry, f"{REGISTRATION}.Registration", registration),
    ]
    signal.pause()
    del servers


def registered(status: Any) -> Any:
    """Print what the kubelet made of it."""
    print(f"registered: {status.plugin_registered} {status.error}", flush=True)
    return INFO["RegistrationStatusResponse"]()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    serve(Path(sys.argv[1]))
