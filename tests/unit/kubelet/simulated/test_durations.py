"""Run durations of pods."""

from typing import Any

import pytest

import make
from batchyard.base.instant import HOUR, MINUTE, SECOND
from batchyard.kubelet.simulated.durations import UNLIMITED_RUNTIME, RunPlan, run_plan_of, sleep_time_of_command
from stage import Stage
from unit.nodes.node_make import owner, pod

UNKNOWN = [{"name": "c", "image": "pytorch"}]


def script_time(script: str, shell: str = "sh", option: str = "-c") -> int | None:
    return sleep_time_of_command("busybox", (shell, option, script), ())


def plan(annotations: dict[str, str], **objects: Any) -> RunPlan:
    """The plan of a pod of a Job of a JobSet; the objects are annotations by kind."""
    stage = Stage()
    job = make.job("j", annotations=objects.get("job"))
    job["metadata"]["ownerReferences"] = owner("JobSet", "js")
    stage.put(job, make.jobset("js", annotations=objects.get("jobset")))
    return run_plan_of(pod(metadata={"annotations": annotations, "ownerReferences": owner("Job", "j")}), stage.client)


@pytest.mark.parametrize(
    ("command", "args", "time"),
    [
        (("sleep", "60"), (), 60 * SECOND),
        (("/bin/sleep",), ("100s",), 100 * SECOND),
        ((), ("sleep", "1m", "0.5"), MINUTE + SECOND // 2),
        (("sleep", "1h"), (), HOUR),
        (("sleep", "infinity"), (), UNLIMITED_RUNTIME),
        (("sleep", "$TIME"), (), None),
        (("sleep",), (), None),
        (("python3", "train.py"), (), None),
        ((), (), None),
    ],
)
def test_sleep_command_duration_is_parsed(command: tuple[str, ...], args: tuple[str, ...], time: int | None) -> None:
    assert sleep_time_of_command("busybox", command, args) == time


@pytest.mark.parametrize(
    ("image", "args", "time"),
    [
        ("gcr.io/k8s-staging-perf-tests/sleep:v0.0.3", ("120s",), 120 * SECOND),
        ("sleep", ("1h30m",), 90 * MINUTE),
        ("x/sleep@sha256:0", ("1s", "-v"), SECOND),
        ("x/sleep:v1", ("soon",), None),
        ("x/sleep:v1", (), None),
        ("x/asleep:v1", ("120s",), None),
        ("sleep/x:v1", ("120s",), None),
    ],
)
def test_sleep_image_duration_is_parsed(image: str, args: tuple[str, ...], time: int | None) -> None:
    assert sleep_time_of_command(image, (), args) == time


@pytest.mark.parametrize(
    ("script", "seconds"),
    [
        ("sleep 5; echo", 5),
        ("pip install 'a[b]'\npython -c 'print(\"x\", 1)'\nsleep 60\n", 60),
        ("sleep 1m && sleep 2 # done\necho", 62),
        ("# don't wait\nsleep 3", 3),
        ("echo hi > f; sleep 4; exit 3; sleep 9", 4),
        ("exec sleep 7; sleep 9", 7),
        ("sleep 3\\\n 4", 7),
        ("sleep 5;\nsleep 6\n\n", 11),
    ],
)
def test_script_duration_is_sum_of_its_sleeps(script: str, seconds: int) -> None:
    assert script_time(script) == seconds * SECOND


@pytest.mark.parametrize(
    "script",
    [
        "while true; do sleep 1; done",
        "f() { sleep 1; }; f",
        "sleep 5 &",
        "false || sleep 5",
        "yes | sleep 5",
        "sleep $X",
        "timeout 3 sleep 6",
        "x=$(sleep 5)",
        "cat <<EOF\nsleep 9\nEOF\n",
        "echo '#1'; sleep 5",
        "echo 'sleep 5",
        "python train.py",
        "",
    ],
)
def test_script_duration_is_unknown_when_uncertain(script: str) -> None:
    assert script_time(script) is None


@pytest.mark.parametrize(("shell", "option"), [("/bin/bash", "-ec"), ("bash", "-lc"), ("sh", "-c")])
def test_script_of_any_shell_is_parsed(shell: str, option: str) -> None:
    assert script_time("sleep 5", shell, option) == 5 * SECOND


@pytest.mark.parametrize("line", [("bash", "x.sh"), ("bash", "-e"), ("bash", "-c"), ("bash", "--rcfile", "sleep 5")])
def test_shell_without_script_has_unknown_duration(line: tuple[str, ...]) -> None:
    assert sleep_time_of_command("busybox", line, ()) is None


def test_runtime_annotation_of_pod_overrides_job_and_jobset() -> None:
    own, jobs, jobsets = ({"batchyard.dev/runtime": text} for text in ("1s", "2s", "3s"))
    assert plan(own, job=jobs, jobset=jobsets).runtime == SECOND
    assert plan({}, job=jobs, jobset=jobsets).runtime == 2 * SECOND
    assert plan({}, jobset=jobsets).runtime == 3 * SECOND
    assert plan({"batchyard.dev/runtime": "soon"}).runtime == 10 * SECOND


def test_exit_code_annotation_is_read_from_pod_job_and_jobset() -> None:
    assert plan({}, jobset={"batchyard.dev/exit-code": "3"}).exit_code == 3
    assert plan({"batchyard.dev/exit-code": "0"}, job={"batchyard.dev/exit-code": "3"}).exit_code == 0
    assert plan({"batchyard.dev/exit-code": "256"}).exit_code == 0


def test_pod_without_known_duration_runs_for_one_minute() -> None:
    assert run_plan_of(pod(containers=UNKNOWN), Stage().client) == RunPlan(MINUTE, 0)


def test_pod_of_deleted_job_runs_until_stopped() -> None:
    """The runtime of the Job is gone with it, so the remaining runtime is unknown."""
    left = pod(containers=UNKNOWN, metadata={"ownerReferences": owner("Job", "gone")})
    assert run_plan_of(left, Stage().client) == RunPlan(UNLIMITED_RUNTIME, 0)


RUNTIMES = {
    "default": "7m",
    "jobs": [{"names": ["team/j-2", "x/y"], "runtime": "90s"}, {"names": ["*/j*"], "runtime": "3m"}],
}


def plan_in(runtimes: dict[str, Any] | None, name: str, default: int | None = None) -> RunPlan:
    """The plan of a pod in a Cluster with these run times."""
    stage = Stage()
    if runtimes is not None:
        cluster = {"apiVersion": "cloud.batchyard.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "c"}}
        stage.put({**cluster, "spec": {"zones": ["z-a"], "region": "z", "runtimes": runtimes}})
    return run_plan_of(pod(name, containers=UNKNOWN), stage.client, default)


def test_cluster_sets_runtime_of_pods_without_own_runtime() -> None:
    assert plan_in(RUNTIMES, "other").runtime == 7 * MINUTE
    assert plan_in(RUNTIMES, "j-1").runtime == 3 * MINUTE
    assert plan_in(RUNTIMES, "j-2").runtime == 90 * SECOND
    assert plan_in({"default": "5s"}, "j-1").runtime == 5 * SECOND
    assert plan_in({}, "j-1").runtime == MINUTE
    assert plan_in(None, "j-1").runtime == MINUTE


def test_changed_cluster_changes_the_runtime_of_a_known_pod() -> None:
    assert [plan_in({"jobs": [{"names": ["*"], "runtime": t}]}, "same").runtime for t in ("1m", "2m")] == [
        MINUTE,
        2 * MINUTE,
    ]


def test_requested_default_runtime_overrides_cluster_default() -> None:
    assert plan_in(RUNTIMES, "other", 2 * HOUR).runtime == 2 * HOUR
    assert plan_in(RUNTIMES, "j-1", 2 * HOUR).runtime == 3 * MINUTE
    assert plan_in(None, "other", 2 * HOUR).runtime == 2 * HOUR
