"""Capacity and properties of this machine as a node: processors, memory, disk, operating system, address."""

import os
import platform
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pynvml

from batchyard.api import meta
from batchyard.apiserver.discovery import VERSION
from batchyard.kubelet.local.node import GPU, Gpu, NodeInventory

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
    left = max(0, meta.parse(amount) - meta.parse(reserved))
    return meta.formatted(left, meta.format_of(amount))


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


# --- gpus ---
#
# GPUs of this machine, by NVIDIA's management library (NVML): their properties and utilization.
#
# Without the library or a GPU there are none. GPUs partitioned into instances (MIG) are skipped, because the local node
# does not allocate instances.


#: Device files shared by all GPUs of a machine.
_SHARED: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_CUT: Final = pynvml.NVML_DEVICE_MIG_ENABLE


class GpuUse(NamedTuple):
    """The utilization of a GPU."""

    memory_bytes: int
    free_bytes: int
    #: In percent, over NVML's last sample period.
    busy_percent: int
    memory_busy_percent: int
    celsius: int
    #: None if the GPU does not report it.
    watts: float | None


class Gpus:
    """The GPUs of this machine, with their NVML handles."""

    def __init__(self) -> None:
        #: Why there are no GPUs; '' if there are some.
        self.failure = ""
        self._handles: dict[str, Any] = {}
        self.found: Sequence[Gpu] = ()
        try:
            pynvml.nvmlInit()
            self.found = [gpu for index in range(pynvml.nvmlDeviceGetCount()) if (gpu := self._looked_at(index))]
        except pynvml.NVMLError as error:
            self.failure = str(error)

    def use(self, gpu: Gpu) -> GpuUse | None:
        """Return the utilization of a GPU; None if it does not report it."""
        handle = self._handles[gpu.uuid]
        try:
            memory, rates = pynvml.nvmlDeviceGetMemoryInfo(handle), pynvml.nvmlDeviceGetUtilizationRates(handle)
            return GpuUse(
                int(memory.used),
                int(memory.free),
                int(rates.gpu),
                int(rates.memory),
                int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
                _watts(handle),
            )
        except pynvml.NVMLError:
            return None

    def _looked_at(self, index: int) -> Gpu | None:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if _is_cut(handle):
            return None
        uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        self._handles[uuid] = handle
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
        number = int(pynvml.nvmlDeviceGetMinorNumber(handle))
        paths = [f"/dev/nvidia{number}", *(path for path in _SHARED if Path(path).exists())]
        return Gpu(number, uuid, str(pynvml.nvmlDeviceGetName(handle)), memory, paths)


def _watts(handle: Any) -> float | None:
    try:
        return int(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1000
    except pynvml.NVMLError:
        return None


def _is_cut(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0] == _CUT)
    except pynvml.NVMLError:
        return False
