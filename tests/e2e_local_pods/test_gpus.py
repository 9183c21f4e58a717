"""A pod gets the GPU that it requests, and computes on it. Needs a machine with a GPU."""

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from batchyard.cli.commands.status import print_status
from batchyard.cli.options import Output
from batchyard.server.local_node.node import Gpus
from e2e_local_pods.node import local_platform, script, wait_for
from e2e_platform.platform_process import UpProcess

FOUND = Gpus()
#: Maximum reads of the log; each takes about a tenth of a second.
_ATTEMPTS = 600
#: Sets and reads 64 MiB through the library of the driver, so that no other library is needed.
COMPUTES = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
def must(code): assert code == 0, code
count, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
must(cuda.cuInit(0))
must(cuda.cuDeviceGetCount(ctypes.byref(count)))
must(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64 << 20)))
must(cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(7), ctypes.c_size_t(64 << 20)))
back = ctypes.create_string_buffer(64 << 20)
must(cuda.cuMemcpyDtoH_v2(back, memory, ctypes.c_size_t(64 << 20)))
assert back.raw == bytes([7]) * (64 << 20)
import os
print("computed", count.value, os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
time.sleep(600)
"""

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine"),
    pytest.mark.skipif(
        not FOUND.devices, reason=f"there is no GPU on this machine: {FOUND.failure or 'none is whole'}"
    ),
]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform with a pod that computes on a GPU."""
    with local_platform(tmp_path_factory.mktemp("platform")) as started:
        limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "command": ["python3", "-c", COMPUTES]}
        started.kubectl("create", "-f", "-", sent=script("computes", "", container=limits))
        wait_for(started, "computes", "Running")
        yield started


def reported_gpus(platform: UpProcess, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The GPUs in the status of the platform."""
    print_status(platform.kubeconfig.parent, Output.JSON)
    gpus: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["local"]["gpus"]
    return gpus


def log_of_computation(platform: UpProcess) -> str:
    """The log of the pod after its computation."""
    for _ in range(_ATTEMPTS):
        log = platform.kubectl("logs", "computes")
        if "computed" in log:
            return log
    raise AssertionError(f"incomplete log: {log!r}")


def test_node_capacity_counts_all_gpus(platform: UpProcess) -> None:
    seen = platform.kubectl("get", "nodes", "-o", r"jsonpath={.items[0].status.capacity.nvidia\.com/gpu}")
    assert seen == str(len(FOUND.devices))


def test_pod_computes_on_its_assigned_gpu(platform: UpProcess, capsys: pytest.CaptureFixture[str]) -> None:
    _, count, uuid = log_of_computation(platform).split()
    (mine,) = [gpu for gpu in reported_gpus(platform, capsys) if gpu["pod"] == "default/computes"]
    assert (count, uuid) == ("1", mine["uuid"])
    assert mine["usedBytes"] >= 64 << 20


def samples(platform: UpProcess, of: str) -> list[tuple[str, dict[str, str], float]]:
    """Names, labels and values of the /metrics samples of a GPU."""
    result = []
    for line in platform.kubectl("get", "--raw", "/metrics?collect[]=gpus").splitlines():
        name, _, rest = line.partition("{")
        labels = dict(re.findall(r'(\w+)="(.*?)"', rest))
        if labels.get("UUID") == of:
            result.append((name, labels, float(line.rpartition(" ")[2])))
    return result


def test_metrics_report_pod_and_measurements_of_gpu(platform: UpProcess, capsys: pytest.CaptureFixture[str]) -> None:
    log_of_computation(platform)
    (mine,) = [gpu for gpu in reported_gpus(platform, capsys) if gpu["pod"] == "default/computes"]
    result = samples(platform, mine["uuid"])
    values = {name.removeprefix("DCGM_FI_DEV_"): value for name, _, value in result}
    assert values["FB_USED"] >= 64  # MiB: what the pod has set
    assert values["FB_USED"] + values["FB_FREE"] <= mine["memoryBytes"] / (1 << 20)
    assert 0 <= values["GPU_UTIL"] <= 100
    assert 0 <= values["MEM_COPY_UTIL"] <= 100
    assert 0 < values["GPU_TEMP"] < 120  # degrees Celsius
    assert 0 < values.get("POWER_USAGE", 1) < 2000  # W; not every GPU reports it
    holder = {"namespace": "default", "pod": "computes", "container": "main", "source": "nvml"}
    assert all(holder.items() <= labels.items() for _, labels, _ in result)


def test_metrics_list_exactly_the_gpus_of_machine(platform: UpProcess) -> None:
    text = platform.kubectl("get", "--raw", "/metrics?collect[]=gpus")
    seen = re.findall(r'^DCGM_FI_DEV_GPU_UTIL\{gpu="(\d+)",UUID="(.*?)",device="nvidia(\d+)"', text, re.MULTILINE)
    expected = [(str(gpu.number), gpu.uuid, str(gpu.number)) for gpu in FOUND.devices]
    assert sorted(seen) == sorted(expected)


def test_pod_without_gpu_request_sees_no_gpu(platform: UpProcess) -> None:
    platform.kubectl(
        "create", "-f", "-", sent=script("without", 'echo "[$CUDA_VISIBLE_DEVICES]"; ls /dev | grep nvidia')
    )
    wait_for(platform, "without", "Failed")
    assert platform.kubectl("logs", "without") == "[]\n"
