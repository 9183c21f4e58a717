"""Faults of runs, supervisors and the spawner: no run is lost, started twice or left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from shutil import rmtree

import pytest

from batchyard.shim import state_dir
from batchyard.shim.images.image_pull import start_image_helper
from integration_shim.machine import (
    ShimMachine,
    container,
    is_alive,
    is_supervised,
    machine,
    sandbox,
    shell,
    state,
    until,
    wait_for_phase,
)

FORKS = 'python3 -c "import os\nwhile True:\n try: os.fork()\n except OSError: pass"'
PROCESS_LIMITS = {"cpu": None, "memory": None, "pids": 50}


def test_endlessly_forking_container_is_ended_with_its_children(node: ShimMachine) -> None:
    node.sandbox()
    run = node.start(shell(FORKS, limits=PROCESS_LIMITS))
    wait_for_phase(run, "Running")
    until(lambda: len(node.processes()) > 20, "it has forked")
    node.stop(run, grace=0)
    assert wait_for_phase(run, "Exited")["exitCode"] in {137, 143}


def test_daemons_of_plain_process_are_ended_on_stop(plain: ShimMachine) -> None:
    run = plain.start(shell("for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'sleep 600 & sleep 600' &); done; sleep 600"))
    until(lambda: sum("sleep" in name_of(pid) for pid in plain.processes()) == 17, "they are daemons")
    plain.stop(run, grace=0)
    until(lambda: not is_supervised(run), "the supervisor has ended")
    assert not any("sleep" in name_of(pid) for pid in plain.processes())


def test_background_process_is_ended_with_its_command(node: ShimMachine) -> None:
    node.sandbox()
    run = node.start(shell("(setsid sleep 600 &) ; sleep 0.1; exit 4"))
    assert wait_for_phase(run, "Exited")["exitCode"] == 4
    until(lambda: not is_supervised(run), "the supervisor has ended")
    node.stop(node.root / "pods/u/sandbox")
    until(lambda: not any("sleep" in name_of(pid) for pid in node.processes()), "its processes are gone")


def test_crash_of_image_helper_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tmp_path / "podman"
    engine.write_text("#!/bin/sh\n")
    engine.chmod(0o755)
    (tmp_path / "containers.conf").mkdir()  # where the image helper writes a file
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    node = state_dir.open_folder(str(tmp_path))
    connection, result = start_image_helper(node, ["docker"], {})
    connection.close()
    (failure,) = result.failures
    assert failure.reason.startswith("the image helper ended during the detection; its error is in node.log")
    assert "image helper: IsADirectoryError" in (tmp_path / "node.log").read_text()
    os.close(node)


def test_run_ends_if_stopped_before_its_start(node: ShimMachine) -> None:
    pause = node.write("pods/u/sandbox", sandbox())
    node.request_stop(pause, 0)
    node.ask("pods/u/sandbox")
    until(lambda: state(pause).get("phase") == "Exited", "the sandbox has ended")
    node.sandbox("other")
    run = node.write("pods/other/runs/main/0", container("sleep", "600"))
    node.request_stop(run, 0)
    node.ask("pods/other/runs/main/0")
    assert wait_for_phase(run, "Exited")["exitCode"] in {137, 143}


def test_container_with_closed_output_keeps_running(node: ShimMachine) -> None:
    node.sandbox()
    run = node.start(shell("exec >&- 2>&-; sleep 0.3; exit 5"))
    assert wait_for_phase(run, "Exited")["exitCode"] == 5


def test_container_ignoring_sigterm_is_killed_after_shortened_grace_period(node: ShimMachine) -> None:
    node.sandbox()
    run = node.start(shell("trap '' TERM; echo up; while :; do sleep 0.01; done"))
    until(lambda: wait_for_phase(run, "Running") and node.texts(), "it is up")
    node.stop(run, grace=600)
    node.stop(run, grace=0.1)
    assert wait_for_phase(run, "Exited")["exitCode"] == 137


def test_runs_survive_kill_of_spawner_and_next_spawner_continues(node: ShimMachine) -> None:
    node.sandbox()
    run = node.start(shell("sleep 0.5; echo done"))
    wait_for_phase(run, "Running")
    node.spawner.kill()
    node.spawner.wait()
    node.spawner = node.start_spawner()
    node.ask("pods/u/runs/main/0")
    reported = node.ended(container("true", container="other"))
    assert (reported["exitCode"], wait_for_phase(run, "Exited")["exitCode"], node.texts()) == (0, 0, ["done"])


def test_second_spawner_is_rejected(plain: ShimMachine) -> None:
    second = subprocess.run(plain.spawner.args, capture_output=True, check=False)
    assert second.returncode == 1
    assert second.stderr.decode() == f"{plain.root}: another spawner is running in this node directory; stop it first\n"


def test_spawner_ends_when_its_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    argv = [sys.executable, "-I", "-m", "batchyard.shim.spawner", str(folder)]
    with subprocess.Popen(
        argv, env={"PATH": os.environ["PATH"], "BATCHYARD_NODE_WITHOUT": "network,podman,docker"}
    ) as spawner:
        until((folder / "features.json").exists, "the spawner's start")
        rmtree(folder)
        assert spawner.wait(20) == 0


def test_container_ends_when_its_supervisor_is_killed(node: ShimMachine) -> None:
    node.sandbox()
    run = node.start(shell("setsid sleep 600 & sleep 600"))
    reported = wait_for_phase(run, "Running")
    os.kill(reported["keeper"], signal.SIGKILL)
    until(lambda: not is_alive(reported["pid"]), "its first process is gone")
    until(lambda: not any("sleep" in name_of(pid) for pid in node.processes()), "so are the others")
    assert state(run)["phase"] == "Running"


def test_containers_end_with_sandbox_of_their_pod(node: ShimMachine) -> None:
    pause = node.sandbox()
    run = node.start(shell("trap '' TERM; sleep 600"))
    wait_for_phase(run, "Running")
    node.stop(pause)
    assert wait_for_phase(run, "Exited")["exitCode"] == 137
    wait_for_phase(pause, "Exited")


def test_runs_end_when_their_folder_is_removed(node: ShimMachine) -> None:
    pause = node.sandbox()
    run = node.start(container("sleep", "600"))
    pids = [wait_for_phase(run, "Running")["pid"], state(pause)["keeper"], state(run)["keeper"]]
    rmtree(node.root / "pods")
    until(lambda: not any(map(is_alive, pids)), "all has ended")


def test_container_without_sandbox_fails_with_start_error(node: ShimMachine) -> None:
    reported = node.ended(container("true"))
    assert (reported["reason"], reported["message"].rpartition(": ")[2]) == (
        "StartError",
        "the pod's sandbox is not running",
    )


def test_full_disk_delays_exit_status_without_loss(tmp_path: Path) -> None:
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tmp_path], check=False).returncode
    ):
        pytest.skip("a separate full disk needs permission to mount")
    try:
        with machine(without="bubblewrap,network,cgroups,userns,podman,docker", root=tmp_path / "node") as node:
            run = node.start(shell("yes | head -c 50000000; exit 6"))
            wait_for_phase(run, "Running")
            filler = tmp_path / "filler"
            subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], check=False, capture_output=True)
            until(lambda: not is_alive(state(run)["pid"]), "the command has ended, its log is no hindrance")
            filler.unlink()
            assert wait_for_phase(run, "Exited")["exitCode"] == 6
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""
