"""A device plugin of simulated GPUs: a process of the node that speaks the kubelet's real v1beta1 interface.

It reads one JSON file, again whenever that changes:

    {"resources": {"nvidia.com/gpu": [{"id": "...", "board": "GPU-...", "mig": "", "healthy": true}, ...]},
     "gpus": folder of simulated boards, "files": where a container finds them,
     "mounts": {path in the container: path on the node}}

A container that is given devices gets what NVIDIA's toolkit would give it: their UUIDs in ``NVIDIA_VISIBLE_DEVICES``,
device files, and ``nvidia-smi``, which here is the stand-in. It is run by its path, with grpcio and protobuf installed.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SOCKETS = Path("/var/lib/kubelet/device-plugins")
POLL_SECONDS = 0.1
REGISTER_SECONDS = 10
# The part of the interface that is used here: field numbers and types are Kubernetes'.
MESSAGES: dict[str, list[tuple[int, str, str]]] = {
    "Empty": [],
    "DevicePluginOptions": [(1, "pre_start_required", "bool"), (2, "get_preferred_allocation_available", "bool")],
    "RegisterRequest": [(1, "version", "string"), (2, "endpoint", "string"), (3, "resource_name", "string")],
    "Device": [(1, "ID", "string"), (2, "health", "string")],
    "ListAndWatchResponse": [(1, "devices", "*Device")],
    "ContainerAllocateRequest": [(1, "devices_ids", "*string")],
    "AllocateRequest": [(1, "container_requests", "*ContainerAllocateRequest")],
    "Mount": [(1, "container_path", "string"), (2, "host_path", "string"), (3, "read_only", "bool")],
    "Variable": [(1, "key", "string"), (2, "value", "string")],  # how a map's entries are sent
    "ContainerAllocateResponse": [(1, "envs", "*Variable"), (2, "mounts", "*Mount")],
    "AllocateResponse": [(1, "container_responses", "*ContainerAllocateResponse")],
}


def define_messages(messages: dict[str, list[tuple[int, str, str]]], package: str) -> dict[str, Any]:
    """Return the class of each message by its name."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, label, kind in fields:
            added = message.field.add(name=label, number=number)
            added.label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
            if (kind := kind.removeprefix("*")) in messages:
                added.type, added.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = {"string": field.TYPE_STRING, "bool": field.TYPE_BOOL}[kind]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in messages}
    return {name: message_factory.GetMessageClass(kind) for name, kind in found.items()}


TYPES = define_messages(MESSAGES, "v1beta1")


def variables(given: Sequence[Mapping[str, Any]], files: str) -> dict[str, str]:
    """Return the environment of a container with these devices. Shares of one GPU appear as one GPU."""
    boards = ",".join(dict.fromkeys(device["board"] for device in given))
    slices = ",".join(f"{device['mig']}={device['id']}" for device in given if device["mig"])
    return {
        "NVIDIA_VISIBLE_DEVICES": ",".join(device["id"] for device in given) if slices else boards,
        "GPUSPAWNER_GPUS": boards,
        "GPUSPAWNER_SIMULATED_DIR": files,
        "GPUSPAWNER_SIMULATED_MIG": slices,
    }


class Plugin:
    """Serves one resource, for example "nvidia.com/gpu", on its own socket."""

    def __init__(self, settings: Path, resource: str, number: int) -> None:
        self.settings = settings
        self.resource = resource
        self.socket = SOCKETS / f"simulated-{number}.sock"
        self.server = grpc.server(ThreadPoolExecutor(4))
        methods = {
            "GetDevicePluginOptions": (grpc.unary_unary_rpc_method_handler, self.options, "Empty"),
            "ListAndWatch": (grpc.unary_stream_rpc_method_handler, self.list_and_watch, "Empty"),
            "Allocate": (grpc.unary_unary_rpc_method_handler, self.allocate, "AllocateRequest"),
        }
        handlers = {
            name: kind(method, TYPES[asked].FromString, lambda answer: answer.SerializeToString())
            for name, (kind, method, asked) in methods.items()
        }
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)])
        self.server.add_insecure_port(f"unix://{self.socket}")
        self.server.start()

    def register(self) -> None:
        """Tell the kubelet of this resource."""
        request = TYPES["RegisterRequest"](version="v1beta1", endpoint=self.socket.name, resource_name=self.resource)
        with grpc.insecure_channel(f"unix://{SOCKETS}/kubelet.sock") as channel:
            call = channel.unary_unary(
                "/v1beta1.Registration/Register", lambda message: message.SerializeToString(), TYPES["Empty"].FromString
            )
            call(request, timeout=REGISTER_SECONDS)

    def devices(self) -> list[dict[str, Any]]:
        """Return the devices as the settings have them now."""
        found: list[dict[str, Any]] = json.loads(self.settings.read_text())["resources"].get(self.resource, [])
        return found

    def options(self, _request: object, _context: object) -> Any:
        """Nothing is asked for beyond the least."""
        return TYPES["DevicePluginOptions"]()

    def list_and_watch(self, _request: object, context: Any) -> Iterator[Any]:
        """Send the devices, and again whenever one changes."""
        sent: list[dict[str, Any]] | None = None
        while context.is_active():
            if (now := self.devices()) != sent:
                sent = now
                yield TYPES["ListAndWatchResponse"](
                    devices=[
                        TYPES["Device"](ID=device["id"], health="Healthy" if device["healthy"] else "Unhealthy")
                        for device in now
                    ]
                )
            time.sleep(POLL_SECONDS)

    def allocate(self, request: Any, _context: Any) -> Any:
        """Give each container its devices."""
        return TYPES["AllocateResponse"](
            container_responses=[self.give(list(asked.devices_ids)) for asked in request.container_requests]
        )

    def give(self, ids: Sequence[str]) -> Any:
        """Return the response for the container of these devices."""
        settings = json.loads(self.settings.read_text())
        envs = variables([device for device in self.devices() if device["id"] in ids], settings["files"])
        mounts = [(settings["files"], settings["gpus"], False)]
        mounts += [(inside, outside, True) for inside, outside in settings["mounts"].items()]
        return TYPES["ContainerAllocateResponse"](
            envs=[TYPES["Variable"](key=key, value=value) for key, value in envs.items()],
            mounts=[
                TYPES["Mount"](container_path=inside, host_path=outside, read_only=read_only)
                for inside, outside, read_only in mounts
            ],
        )


def serve(settings: Path) -> None:
    """Serve until told to end; a kubelet that was started again is told again, as its socket shows."""
    plugins: list[Plugin] = []
    known: tuple[Any, ...] = ()
    while True:
        socket = SOCKETS / "kubelet.sock"
        with contextlib.suppress(FileNotFoundError, grpc.RpcError):
            wanted = (socket.stat().st_ino, *json.loads(settings.read_text())["resources"])
            if wanted != known:
                for plugin in plugins:
                    plugin.server.stop(0).wait()
                plugins = [Plugin(settings, resource, number) for number, resource in enumerate(wanted[1:])]
                for plugin in plugins:
                    plugin.register()
                known = wanted
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    serve(Path(sys.argv[1]))
