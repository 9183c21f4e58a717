"""GPUs of this machine, by NVIDIA's management library (NVML): their properties and utilization.

Without the library or a GPU there are none. GPUs partitioned into instances (MIG) are skipped, because the local node
does not allocate instances.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pynvml

from batchyard.kubelet.local.devices import Gpu

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
