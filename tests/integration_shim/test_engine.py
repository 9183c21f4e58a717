"""Containers of an engine: same features as other containers, and no leftovers after kills."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from batchyard.shim.stop import parse_stop_signal
from integration_shim.machine import (
    ShimMachine,
    container,
    is_alive,
    is_supervised,
    shell,
    state,
    until,
    wait_for_phase,
)

EngineNode = tuple[ShimMachine, dict[str, str]]


def output_of(script: str, engine: EngineNode, **fields: Any) -> list[str]:
    """The output lines of a script in a container of the image."""
    node, image = engine
    node.sandbox(hostname="a-pod")
    node.ended(shell(script, image=image, **fields))
    return node.texts()


def test_container_sees_files_of_image_and_shared_files_of_pod(engine: EngineNode) -> None:
    node, _ = engine
    text = "ls /; hostname; cat /etc/hosts; echo $WHO $KEPT; id -u; echo err >&2"
    result = output_of(text, engine, environment={"WHO": "pod"}, workingDir="/srv")
    assert {"bin", "srv", "a-pod", "127.0.0.1 localhost", "pod yes", "1234"} <= set(result)
    assert "usr" not in result
    assert ("stderr", "F", "err") in node.log()


def test_environment_variables_are_passed_unchanged(engine: EngineNode) -> None:
    node, image = engine
    values = {"LINES": "a\nb ", "QUOTED": "#'\"$X\\ ", "with.dot": "1", "EMPTY": "", "LONG": "x" * 70000}
    node.sandbox()
    node.ended(container("env", image=image, environment=values))
    assert {"LINES=a", "b ", "QUOTED=#'\"$X\\ ", "with.dot=1", "EMPTY="} <= set(node.texts())
    assert "x" * 4096 in "".join(node.texts())


def test_container_runs_as_given_user_without_privileges(engine: EngineNode) -> None:
    script = "id -u; id -G; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status"
    result = output_of(script, engine, user="7:8", groups=[9])
    assert result[:2] == ["7", "8 9"]
    assert [line.split()[1].strip("0") for line in result[2:]] == ["", "", "1"]


def test_volumes_are_mounted_at_their_targets(engine: EngineNode) -> None:
    node, image = engine
    for name in ("disk/part", "mem"):
        node.make(f"pods/u/volumes/{name}", 0o777)
    node.sandbox(tmpfs=[{"volume": "mem", "bytes": 1 << 20}])
    mounts = [
        {"source": "volumes/mem", "target": "/m", "readOnly": False},
        {"source": "volumes/disk/part", "target": '/odd, "name"', "readOnly": True},
    ]
    script = "touch /m/x && ls /m; touch '/odd, \"name\"/y' || echo read-only; touch /srv/z || echo also"
    node.ended(shell(script, image=image, mounts=mounts, readOnlyRoot=True, user="0"))
    assert [text for stream, _, text in node.log() if stream == "stdout"] == ["x", "read-only", "also"]


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("(sleep 600 &); exit 3", 3), ("kill -9 $PPID; exit 0", 0)]
)
def test_container_reports_exit_code_of_command(script: str, code: int, engine: EngineNode) -> None:
    node, image = engine
    node.sandbox()
    reported = node.ended(shell(script, image=image))
    assert (reported["exitCode"], reported["reason"]) == (code, "Error" if code else "Completed")


def test_container_over_memory_limit_is_oom_killed(engine: EngineNode) -> None:
    node, image = engine
    node.sandbox()
    limits = {"cpu": 500, "memory": 32 << 20, "pids": 50}
    reported = node.ended(shell("a=x; while :; do a=$a$a; done", image=image, limits=limits))
    assert (reported["exitCode"], reported["reason"]) == (137, "OOMKilled")


def test_forking_container_is_limited_and_ended_with_its_children(engine: EngineNode) -> None:
    node, image = engine
    node.sandbox()
    limits = {"cpu": None, "memory": None, "pids": 20}
    run = node.start(shell("f() { f | f & }; f; sleep 600", image=image, limits=limits))
    wait_for_phase(run, "Running")
    node.stop(run, grace=0)
    assert wait_for_phase(run, "Exited")["exitCode"] in {137, 143, 1, 2}


def test_missing_command_is_reported_as_start_error_of_runtime(engine: EngineNode) -> None:
    node, image = engine
    node.sandbox()
    reported = node.ended(container("nosuch", image=image))
    assert (reported["exitCode"], reported["reason"]) == (128, "StartError")
    assert reported["message"].endswith('exec: "nosuch": executable file not found in $PATH')
    assert node.texts() == []


def test_container_ends_by_stop_signal_of_image_or_is_killed(engine: EngineNode) -> None:
    node, image = engine
    node.sandbox()
    trap = "trap 'echo told; exit 4' USR1; echo up; while :; do sleep 0.01; done"
    run = node.start(shell(trap, image=image, stopSignal="SIGUSR1"))
    until(lambda: wait_for_phase(run, "Running") and node.texts(), "it is up")
    node.stop(run)
    assert wait_for_phase(run, "Exited")["exitCode"] == 4
    other = node.start(shell("trap '' TERM; while :; do sleep 0.01; done", image=image, attempt=1))
    wait_for_phase(other, "Running")
    node.stop(other, grace=0.1)
    assert wait_for_phase(other, "Exited")["exitCode"] == 137


def test_probes_and_hooks_run_in_container(engine: EngineNode) -> None:
    node, image = engine
    node.sandbox()
    ready = {"exec": {"command": ["sh", "-c", "test -e /tmp/hooked && echo $WHO >> /tmp/probed"]}}
    times = {"periodSeconds": 1, "timeoutSeconds": 5, "successThreshold": 1, "failureThreshold": 3}
    hook = {"exec": {"command": ["sh", "-c", "id -u > /tmp/hooked"]}}
    script = "while ! test -e /tmp/probed; do sleep 0.01; done; cat /tmp/hooked /tmp/probed"
    spec = shell(script, image=image, probes={"readiness": ready | times}, hooks={"postStart": hook})
    assert node.ended(spec)["exitCode"] == 0
    assert node.texts() == ["1234", "image"]


def test_container_has_requested_terminal(engine: EngineNode) -> None:
    node, image = engine
    node.sandbox()
    reported = node.ended(
        shell("test -t 0 && test -t 1 && echo yes; sleep 0.1; exit 6", image=image, tty=True, stdin=True)
    )
    assert (reported["exitCode"], node.texts()) == (6, ["yes"])


def test_container_ends_when_its_supervisor_is_killed(engine: EngineNode) -> None:
    node, image = engine
    node.sandbox()
    run = node.start(shell("sleep 600", image=image))
    reported = wait_for_phase(run, "Running")
    os.kill(reported["keeper"], signal.SIGKILL)
    until(lambda: not is_alive(reported["pid"]), "the container has ended")
    assert not is_supervised(run)


def test_container_ends_when_supervisor_and_spawner_are_killed(engine: EngineNode) -> None:
    node, image = engine
    node.sandbox()
    run = node.start(shell("sleep 600", image=image))
    reported = wait_for_phase(run, "Running")
    node.spawner.kill()
    node.spawner.wait()
    for pid in (reported["keeper"], *_children(reported["keeper"])):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.spawner = node.start_spawner()
    until(lambda: not is_alive(reported["pid"]), "the container has ended")
    assert state(run)["phase"] == "Running"


def test_container_survives_kill_of_engine_monitor(engine: EngineNode) -> None:
    node, image = engine
    node.sandbox()
    run = node.start(shell("while ! test -e /tmp/go; do sleep 0.01; done; exit 8", image=image))
    reported = wait_for_phase(run, "Running")
    watcher = int(Path(f"/proc/{reported['pid']}/stat").read_text().rpartition(")")[2].split()[1])
    assert "conmon" in Path(f"/proc/{watcher}/comm").read_text()
    os.kill(watcher, signal.SIGKILL)
    until(lambda: not is_alive(watcher), "the watcher has ended")
    Path(f"/proc/{reported['pid']}/root/tmp/go").touch()
    assert wait_for_phase(run, "Exited")["exitCode"] == 8


def test_container_survives_restart_of_spawner(engine: EngineNode) -> None:
    node, image = engine
    node.sandbox()
    run = node.start(shell("while ! test -e /tmp/go; do sleep 0.01; done; exit 8", image=image))
    reported = wait_for_phase(run, "Running")
    node.spawner.kill()
    node.spawner.wait()
    node.spawner = node.start_spawner()
    Path(f"/proc/{reported['pid']}/root/tmp/go").touch()
    assert wait_for_phase(run, "Exited")["exitCode"] == 8


def image_request(name: str, policy: str, **fields: Any) -> dict[str, Any]:
    """The spec of an image request."""
    names = {"image": name, "named": name, "reference": name}
    spec = {"kind": "image", "for": "main", "policy": policy, "pod": {"uid": "u"}, "engine": "podman"}
    return {**spec, **names, **fields}


def find_image(node: ShimMachine, number: int, spec: dict[str, Any]) -> dict[str, Any]:
    """The state of a finished image request."""
    run = node.make(f"pods/u/images/main/{number}")
    (run / "spec.json").write_text(json.dumps(spec))
    node.ask(f"pods/u/images/main/{number}")
    return wait_for_phase(run, "Exited")


def test_image_request_reports_configuration_of_image(engine: EngineNode) -> None:
    node, image = engine
    reported = find_image(node, 0, image_request(image["name"], "IfNotPresent"))
    assert [row["message"] for row in reported["warnings"]] == [
        f'Container image "{image["name"]}" already present on machine'
    ]
    result = reported["image"]
    assert (result["id"], result["user"], result["workingDir"]) == (image["id"], "1234", "/srv")
    assert result["entrypoint"][0] == "/bin/sh"
    assert parse_stop_signal(result["stopSignal"]) == signal.SIGUSR1


def test_missing_image_fails_according_to_pull_policy(engine: EngineNode) -> None:
    node, _ = engine
    missing = "localhost:1/no/such:1"
    reported = find_image(node, 0, image_request(missing, "Never"))
    assert reported["reason"] == "ErrImageNeverPull"
    assert reported["message"] == f'Container image "{missing}" is not present with pull policy of Never'
    reported = find_image(node, 1, image_request(missing, "Always"))
    assert (reported["reason"], reported["warnings"][0]["message"]) == ("ErrImagePull", f'Pulling image "{missing}"')
    assert "connection refused" in reported["message"]


def _children(pid: int) -> list[int]:
    request = ["pgrep", "--parent", str(pid)]
    return [int(line) for line in subprocess.run(request, capture_output=True, text=True, check=False).stdout.split()]
