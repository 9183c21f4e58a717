"""`batchyard submit` on a running platform: its messages, and its exit code."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.platform_process import UpProcess, kubectl
from e2e_platform.test_described_jobs import DEFINITION, SPEC

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

ROOT = Path(__file__).parents[2]
QUEUES = (ROOT / "examples" / "training" / "platform.yaml").read_text("utf-8")
TEAM = ("--queue", "lq-team-a", "--namespace", "team-a")
_ENDS_WITHIN = 60


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform with the queues of the training example: one CPU each, two CPUs in total."""
    folder = tmp_path_factory.mktemp("platform")
    with UpProcess(folder, "--speed", "10x", "--sync", "process") as started:
        started.kubectl("apply", "-f", "-", sent=QUEUES)
        yield started


def start_submit(platform: UpProcess, *arguments: str) -> "subprocess.Popen[str]":
    """The running command for a platform."""
    command = [sys.executable, "-m", "batchyard", "submit", "--data-dir", str(platform.kubeconfig.parent)]
    piped = subprocess.PIPE
    return subprocess.Popen([*command, *arguments], stdout=piped, stderr=piped, text=True)


def run_submit(platform: UpProcess, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    with start_submit(platform, *arguments) as process:
        printed, reported = process.communicate(timeout=_ENDS_WITHIN)
        return process.returncode, printed, reported


def runs(seconds: int, code: int = 0) -> tuple[str, ...]:
    """Options for the run time and the exit code of simulated pods."""
    ends = ("--annotation", f"batchyard.dev/exit-code={code}")
    return "--annotation", f"batchyard.dev/runtime={seconds}s", *ends


def test_submit_follows_job_until_it_completes(platform: UpProcess) -> None:
    code, printed, reported = run_submit(platform, *TEAM, *runs(3), "--name", "well", "--", "python", "train.py")
    assert (code, [line.split()[1] for line in printed.splitlines()]) == (0, ["started:", "finished:"])
    lines = reported.splitlines()
    assert lines[0] == "batchyard: job well created in namespace team-a, queue lq-team-a"
    assert "batchyard: admitted by cq-team-a, on this-machine" in lines
    assert lines[-1] == "batchyard: complete in 3 s"


def test_submit_returns_exit_code_of_container_and_prefixes_lines_with_pod(platform: UpProcess) -> None:
    several = ("--completions", "2", "--cpu", "500m")
    code, printed, reported = run_submit(platform, *TEAM, *runs(3, 7), *several, "--name", "ill", "--", "false")
    assert code == 7
    assert {line.partition("] ")[0].rpartition("-")[0] for line in printed.splitlines()} == {"[ill-0", "[ill-1"}
    assert reported.endswith("Job has reached the specified backoff limit; exit code 7\n")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ("--queue", "none"),
            "LocalQueue none not found in namespace default; available in other namespaces: team-a/lq-",
        ),
        (("--queue", "lq-team-a"), "found in team-a: use --namespace team-a"),
        (("--queue", "none", "-n", "team-b"), "available: lq-team-b"),
        ((*TEAM, "--priority", "none"), "WorkloadPriorityClass none not found; available: high-priority, low-priority"),
    ],
)
def test_submit_rejects_unknown_name_and_lists_available_names(
    platform: UpProcess, arguments: tuple[str, ...], why: str
) -> None:
    code, printed, reported = run_submit(platform, *arguments, "--", "true")
    assert (code, printed) == (1, "")
    assert why in reported


def test_submit_reports_reason_for_waiting_and_prints_hint_on_interrupt(platform: UpProcess) -> None:
    with start_submit(platform, *TEAM, "--cpu", "3", "--name", "large", "--", "true") as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "waits: couldn't assign flavors" in line)
        process.send_signal(signal.SIGINT)
        reported = process.stderr.read()
        assert process.wait(_ENDS_WITHIN) == 130
    assert "kubectl --namespace team-a describe job large" in reported
    platform.kubectl("delete", "job", "large", "--namespace", "team-a")


def test_submit_prints_json_events_including_preemption(platform: UpProcess) -> None:
    low = (*TEAM, *runs(36_000), "--cpu", "2", "--priority", "low-priority", "--name", "low", "-o", "json")
    with start_submit(platform, *low, "--", "true") as process:
        assert process.stdout is not None
        events = map(json.loads, process.stdout)
        next(event for event in events if event["event"] == "PodRunning")
        assert run_submit(platform, *TEAM, *runs(3), "--priority", "high-priority", "--", "true")[0] == 0
        evicted = next(event for event in events if event["event"] == "Evicted")
        assert evicted["reason"] == "Preempted"
        next(event for event in events if event["event"] == "Admitted")
        platform.kubectl("delete", "job", "low", "--namespace", "team-a")
        assert list(events)[-1] == {"event": "Deleted", "exitCode": 1}


def test_shipped_files_are_deleted_with_job(platform: UpProcess, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / ".git").mkdir()
    arguments = (*TEAM, "--detach", "--name", "along", str(tmp_path), "--", "python", "train.py")
    code, _, reported = run_submit(platform, *arguments)
    assert (code, "1 file shipped, 0.1 kB; left out: .git/" in reported) == (0, True)
    result = platform.kubectl("get", "configmap", "along-files-0", "-n", "team-a", "-o", "json")
    owner: dict[str, Any] = json.loads(result)["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Job", "along")
    platform.kubectl("delete", "job", "along", "-n", "team-a", "--cascade=foreground")
    platform.kubectl("wait", "--for=delete", "configmap/along-files-0", "-n", "team-a", "--timeout=30s")


def test_rejected_submit_creates_no_job(platform: UpProcess, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    platform.kubectl("create", "configmap", "twice-files-0", "-n", "team-a")
    code, _, reported = run_submit(platform, *TEAM, "--name", "twice", str(tmp_path), "--", "true")
    assert (code, 'twice-files-0 cannot be created: 409: configmaps "twice-files-0" already exists' in reported) == (
        1,
        True,
    )
    assert "not found" in platform.kubectl("get", "job", "twice", "-n", "team-a", fails=True)


def test_job_is_deleted_when_its_files_cannot_be_shipped(platform: UpProcess, tmp_path: Path) -> None:
    (tmp_path / "hard.bin").write_bytes(b"".join(sha256(b"%d" % each).digest() for each in range(40_000)))
    platform.kubectl("create", "configmap", "half-files-1", "-n", "team-a")
    code, _, reported = run_submit(platform, *TEAM, "--name", "half", str(tmp_path), "--", "true")
    assert (code, "ConfigMap half-files-1 cannot be created: 409" in reported) == (1, True)
    platform.kubectl("wait", "--for=delete", "job/half", "-n", "team-a", "--timeout=30s")


def test_submit_ends_when_job_is_deleted(platform: UpProcess) -> None:
    with start_submit(platform, *TEAM, *runs(3600), "--name", "gone", "--", "true") as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "runs" in line)
        platform.kubectl("delete", "job", "gone", "--namespace", "team-a")
        assert process.stderr.read().endswith("batchyard: the Job was deleted\n")
        assert process.wait(_ENDS_WITHIN) == 1


def test_dry_run_output_is_accepted_by_kubectl_apply(platform: UpProcess, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    arguments = (*TEAM, "--name", "applied", "--dry-run", str(tmp_path), "--", "python", "train.py")
    code, printed, _ = run_submit(platform, *arguments)
    assert code == 0
    applied = platform.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", sent=printed)
    assert [line.split()[0] for line in applied.splitlines()] == ["configmap/applied-files-0", "job.batch/applied"]


def test_team_member_submits_with_kubeconfig(platform: UpProcess) -> None:
    folder = platform.kubeconfig.parent
    platform.kubectl("create", "rolebinding", "anna", "--clusterrole=edit", "--user=anna", "--namespace=team-a")
    user = [sys.executable, "-m", "batchyard", "user", "anna", "--namespace", "team-a", "--data-dir", str(folder)]
    subprocess.run(user, check=True, capture_output=True)
    hers = folder / "users" / "anna.kubeconfig"
    command = [sys.executable, "-m", "batchyard", "submit", "--kubeconfig", str(hers), "--queue", "lq-team-a"]
    done = subprocess.run(
        [*command, *runs(3), "--name", "hers", "--", "true"],
        capture_output=True,
        check=False,
        text=True,
        timeout=_ENDS_WITHIN,
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "batchyard: complete in 3 s")
    assert "job.batch/hers" in kubectl(hers, "get", "job", "hers", "-o", "name")


def test_framework_job_is_created_where_its_kind_is_installed(platform: UpProcess) -> None:
    pytorch = (*TEAM, "--cpu", "500m", "--pytorch", "2", "--name", "torch", "--", "torchrun", "train.py")
    code, _, reported = run_submit(platform, *pytorch)
    assert code == 1
    assert "this cluster has no kind PyTorchJob (kubeflow.org/v1): install the training operator" in reported
    platform.kubectl("apply", "-f", "-", sent=json.dumps({**DEFINITION, "spec": SPEC}))
    code, _, reported = run_submit(platform, *pytorch)
    assert code == 0, reported
    assert reported.startswith("batchyard: pytorchjob torch created in namespace team-a, queue lq-team-a\n")
    platform.kubectl("wait", "pytorchjob/torch", "-n", "team-a", "--for=jsonpath={.spec.runPolicy.suspend}=false")
    platform.kubectl("delete", "pytorchjob", "torch", "-n", "team-a")


def test_job_starts_after_another_one(platform: UpProcess) -> None:
    assert run_submit(platform, *TEAM, *runs(40), "--name", "first", "--detach", "--", "true")[0] == 0
    code, _, reported = run_submit(platform, *TEAM, *runs(1), "--after", "ok:first", "--name", "second", "--", "true")
    assert code == 0
    assert "batchyard: waits: Admission is gated by: batchyard.dev/after" in reported
    code, _, reported = run_submit(platform, *TEAM, "--after", "ok:cron/a", "--name", "third", "--", "true")
    assert code == 1
    assert "'cron' is not a kind of job that has queues here" in reported


def test_failed_task_of_an_array_does_not_stop_the_others(platform: UpProcess) -> None:
    code, printed, _ = run_submit(platform, *TEAM, *runs(1, 3), "--array", "3%1", "--name", "tasks", "--", "false")
    assert code == 3
    assert {line.split("-")[1] for line in printed.splitlines()} == {"0", "1", "2"}
