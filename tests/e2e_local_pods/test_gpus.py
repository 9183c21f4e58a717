"""A pod of this machine has the GPU it asks for, and computes on it: where the machine has one."""

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from batchyard.cli.commands.status import print_status
from batchyard.cli.options import Output
from batchyard.server.local_node.machine_info import Gpus
from e2e_local_pods.node import local_platform, script, wait_for
from e2e_platform.running import Running

FOUND = Gpus()
#: How often a log is asked for; each takes about a tenth of a second.
_LOOKS = 600
#: Through the driver's own library, so that no other is needed: 64 MiB are set and read back.
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
    pytest.mark.skipif(not FOUND.found, reason=f"there is no GPU on this machine: {FOUND.failure or 'none is whole'}"),
]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A platform with a pod that has a GPU, and computes on it."""
    with local_platform(tmp_path_factory.mktemp("platform")) as started:
        limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "command": ["python3", "-c", COMPUTES]}
        started.kubectl("create", "-f", "-", sent=script("computes", "", container=limits))
        wait_for(started, "computes", "Running")
        yield started


def reported(platform: Running, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What the platform says of its GPUs."""
    print_status(platform.kubeconfig.parent, Output.JSON)
    gpus: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["local"]["gpus"]
    return gpus


def computed(platform: Running) -> str:
    """What the pod says once it has computed."""
    for _ in range(_LOOKS):
        log = platform.kubectl("logs", "computes")
        if "computed" in log:
            return log
    raise AssertionError(f"it says only {log!r}")


def test_the_node_has_as_many_as_there_are(platform: Running) -> None:
    seen = platform.kubectl("get", "nodes", "-o", r"jsonpath={.items[0].status.capacity.nvidia\.com/gpu}")
    assert seen == str(len(FOUND.found))


def test_a_pod_computes_on_the_one_it_was_given(platform: Running, capsys: pytest.CaptureFixture[str]) -> None:
    _, count, uuid = computed(platform).split()
    (mine,) = [gpu for gpu in reported(platform, capsys) if gpu["pod"] == "default/computes"]
    assert (count, uuid) == ("1", mine["uuid"])
    assert mine["usedBytes"] >= 64 << 20


def samples(platform: Running, of: str) -> list[tuple[str, dict[str, str], float]]:
    """What is told at /metrics of the GPU of that UUID: names, labels, values."""
    found = []
    for line in platform.kubectl("get", "--raw", "/metrics?collect[]=gpus").splitlines():
        name, _, rest = line.partition("{")
        labels = dict(re.findall(r'(\w+)="(.*?)"', rest))
        if labels.get("UUID") == of:
            found.append((name, labels, float(line.rpartition(" ")[2])))
    return found


def test_metrics_tell_who_has_it_and_what_is_measured(platform: Running, capsys: pytest.CaptureFixture[str]) -> None:
    computed(platform)
    (mine,) = [gpu for gpu in reported(platform, capsys) if gpu["pod"] == "default/computes"]
    found = samples(platform, mine["uuid"])
    values = {name.removeprefix("DCGM_FI_DEV_"): value for name, _, value in found}
    assert values["FB_USED"] >= 64  # MiB: what the pod has set
    assert values["FB_USED"] + values["FB_FREE"] <= mine["memoryBytes"] / (1 << 20)
    assert 0 <= values["GPU_UTIL"] <= 100
    assert 0 <= values["MEM_COPY_UTIL"] <= 100
    assert 0 < values["GPU_TEMP"] < 120  # degrees Celsius
    assert 0 < values.get("POWER_USAGE", 1) < 2000  # W; not every GPU tells
    holder = {"namespace": "default", "pod": "computes", "container": "main", "source": "nvml"}
    assert all(holder.items() <= labels.items() for _, labels, _ in found)


def test_metrics_name_all_gpus_and_no_others(platform: Running) -> None:
    text = platform.kubectl("get", "--raw", "/metrics?collect[]=gpus")
    seen = re.findall(r'^DCGM_FI_DEV_GPU_UTIL\{gpu="(\d+)",UUID="(.*?)",device="nvidia(\d+)"', text, re.MULTILINE)
    wanted = [(str(gpu.number), gpu.uuid, str(gpu.number)) for gpu in FOUND.found]
    assert sorted(seen) == sorted(wanted)


def test_who_asks_for_none_sees_none(platform: Running) -> None:
    platform.kubectl(
        "create", "-f", "-", sent=script("without", 'echo "[$CUDA_VISIBLE_DEVICES]"; ls /dev | grep nvidia')
    )
    wait_for(platform, "without", "Failed")
    assert platform.kubectl("logs", "without") == "[]\n"
