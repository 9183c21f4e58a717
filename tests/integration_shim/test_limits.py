"""Limits of a container: control groups, or limits of a Linux process."""

import os
import signal
from pathlib import Path

import pytest

from batchyard.shim import spawner
from batchyard.shim.isolation import cgroups
from integration_shim.machine import ShimMachine, container, shell, state, until, wait_for_phase

EATER = "x = bytearray(300 << 20); print('ate')"
LIMITS = {"cpu": None, "memory": 64 << 20, "pids": 1000}


def test_container_over_memory_limit_is_oom_killed(grouped: ShimMachine) -> None:
    grouped.sandbox()
    reported = grouped.ended(container("python3", "-c", EATER, limits=LIMITS))
    assert (reported["exitCode"], reported["reason"], grouped.texts()) == (137, "OOMKilled", [])


@pytest.mark.parametrize("goes_on", ["exit 0", "sleep 600"])
def test_container_is_oom_killed_with_child_over_memory_limit(grouped: ShimMachine, goes_on: str) -> None:
    grouped.sandbox()
    reported = grouped.ended(shell(f'python3 -c "{EATER}"; {goes_on}', limits=LIMITS))
    assert (reported["exitCode"], reported["reason"]) == (137, "OOMKilled")


def test_container_within_memory_limit_completes(grouped: ShimMachine) -> None:
    grouped.sandbox()
    reported = grouped.ended(container("python3", "-c", EATER, limits=LIMITS | {"memory": 600 << 20}))
    assert (reported["reason"], grouped.texts()) == ("Completed", ["ate"])


def test_memory_limit_without_cgroups_raises_memory_error(node: ShimMachine) -> None:
    if node.features["cgroups"]:
        pytest.skip("the machine has control groups")
    node.sandbox()
    reported = node.ended(container("python3", "-c", EATER, limits=LIMITS))
    assert (reported["exitCode"], node.texts()) == (1, [*node.texts()[:-1], "MemoryError"])


def test_container_has_process_limit(node: ShimMachine) -> None:
    node.sandbox()
    forks = "import os\nn = 0\ntry:\n while os.fork(): n += 1\n os._exit(0)\nexcept OSError: print(n)"
    node.ended(container("python3", "-c", forks, limits={"cpu": None, "memory": None, "pids": 20}))
    assert 10 < int(node.texts()[0]) <= 20


def test_cpu_limits_become_same_cgroup_settings_as_with_kubelet() -> None:
    limits, requests = {"cpu": 1500, "memory": 1 << 30, "pids": 100}, {"cpu": 250}
    first, second = (cgroups.control_file_contents(version, limits, requests) for version in (1, 2))
    assert first["cpu"] == {"cpu.shares": "256", "cpu.cfs_quota_us": "150000"}
    assert second["cpu"] == {"cpu.weight": "10", "cpu.max": "150000 100000"}
    assert second["memory"] == {"memory.max": str(1 << 30), "memory.swap.max": "0", "memory.oom.group": "1"}


def test_container_without_cpu_request_gets_minimum_shares() -> None:
    nothing = {"cpu": None, "memory": None, "pids": 100}
    result = cgroups.control_file_contents(1, nothing, {"cpu": None})
    assert result == {"cpu": {"cpu.shares": "2"}, "memory": {}, "pids": {"pids.max": "102"}}


def test_cgroup_of_killed_supervisor_is_removed(grouped: ShimMachine) -> None:
    grouped.sandbox()
    run = grouped.start(container("sleep", "600"))
    wait_for_phase(run, "Running")
    assert any(group.name == "main-0" for group in grouped.groups())
    os.kill(state(run)["keeper"], signal.SIGKILL)
    until(lambda: not any(group.name == "main-0" for group in grouped.groups()), "its group is gone")


def test_new_spawner_removes_leftover_cgroups(grouped: ShimMachine) -> None:
    run = grouped.sandbox()
    grouped.spawner.kill()
    grouped.spawner.wait()
    os.kill(state(run)["keeper"], signal.SIGKILL)
    assert grouped.groups()
    grouped.spawner = grouped.start_spawner()
    assert not grouped.groups()


def test_cgroup_v2_is_joined_and_removed_with_its_processes() -> None:
    group = {"memory": f"/sys/fs/cgroup/unified/batchyard-test-{os.getpid()}"}
    try:
        cgroups.create_group(group, {})
    except OSError:
        pytest.skip("the machine has no cgroup v2 hierarchy beside that of v1")
    child = os.fork()
    if child == 0:
        cgroups.join_group(group)
        signal.pause()
    until((Path(group["memory"]) / "cgroup.procs").read_text, "it has entered")
    cgroups.remove_group(group)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert not Path(group["memory"]).exists()


def test_volume_over_size_limit_is_reported(node: ShimMachine) -> None:
    node.make("pods/u/volumes/scratch", 0o777)
    pause = node.sandbox(limited=[{"volume": "scratch", "bytes": 1 << 20}])
    mount = {"source": "volumes/scratch", "target": "/scratch", "readOnly": False}
    node.ended(shell("head -c 1200000 /dev/zero > /scratch/a", mounts=[mount]))
    assert until(lambda: state(pause).get("exceeded"), "the volume is measured")["volume"] == "scratch"


def test_disk_usage_counts_hard_links_once(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below/a").write_bytes(b"x" * 600_000)
    (tmp_path / "below/b").hardlink_to(tmp_path / "below/a")
    (tmp_path / "out").symlink_to("/usr")
    assert 600_000 <= spawner.measure_disk_usage(str(tmp_path)) < 700_000
    assert spawner.measure_disk_usage(str(tmp_path / "none")) == 0
