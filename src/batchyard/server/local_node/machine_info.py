"""Capacity and properties of this machine as a node: processors, memory, disk, operating system, address."""

import os
import platform
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from batchyard.api import quantity
from batchyard.apiserver.discovery import VERSION
from batchyard.kubelet.local.devices import GPU, Gpu
from batchyard.kubelet.local.node import NodeInventory

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_VERSION: Final = VERSION["gitVersion"]
_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
#: Default reservation for the platform and system programs.
_RESERVED: Final = {"memory": "256Mi"}


def facts_of(local: Mapping[str, Any], folder: Path, gpus: Sequence[Gpu]) -> NodeInventory:
    """Return the properties of this machine, with the settings of `spec.local`; `folder` holds its data."""
    name = local.get("name") or socket.gethostname().lower()
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    own = {"hostname": name, "arch": architecture, "os": "linux"}
    labels = {f"kubernetes.io/{key}": value for key, value in own.items()} | _gpu_labels(gpus)
    capacity = {
        "cpu": str(len(os.sched_getaffinity(0))),
        "ephemeral-storage": f"{shutil.disk_usage(folder).total // _KIB}Ki",
        "memory": f"{_memory() // _KIB}Ki",
        "pods": str(local.get("pods", 110)),
        **({GPU: str(len(gpus))} if gpus else {}),
    }
    reserved = {**_RESERVED, **(local.get("reserved") or {})}
    return NodeInventory(
        name,
        _address(),
        capacity,
        {what: _less(amount, reserved.get(what)) for what, amount in capacity.items()},
        _info(architecture),
        {**labels, **(local.get("labels") or {})},
        local.get("taints") or (),
    )


def _gpu_labels(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the labels that NVIDIA's GPU feature discovery sets for GPUs of one model."""
    if not gpus:
        return {}
    product = gpus[0].model.replace(" ", "-")
    megabytes = gpus[0].memory_bytes // _MIB
    return {f"{GPU}.count": str(len(gpus)), f"{GPU}.product": product, f"{GPU}.memory": str(megabytes)}


def _less(amount: str, reserved: str | None) -> str:
    """Return the quantity that is left after a reservation."""
    if reserved is None:
        return amount
    left = max(0, quantity.parse(amount) - quantity.parse(reserved))
    return quantity.formatted(left, quantity.format_of(amount))


def _memory() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _address() -> str:
    """Return the address by which other machines reach this one. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))  # TEST-NET-1: connecting selects the source address
            return str(asked.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _info(architecture: str) -> Mapping[str, Any]:
    """Return the `nodeInfo` of the machine."""
    return {
        "architecture": architecture,
        "bootID": _line("/proc/sys/kernel/random/boot_id"),
        "containerRuntimeVersion": f"batchyard://{_VERSION}",
        "kernelVersion": platform.release(),
        "kubeProxyVersion": "",
        "kubeletVersion": _VERSION,
        "machineID": _line("/etc/machine-id"),
        "operatingSystem": "linux",
        "osImage": _system(),
        "systemUUID": "",
    }


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _line(path: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except OSError:
        return ""
