"""`batchyard submit` with pods that are processes of this machine."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_local_pods.node import PATIENCE, local_platform
from e2e_platform.platform_process import UpProcess, kubectl

ROOT = Path(__file__).parents[2]
QUEUES = ROOT / "examples" / "training" / "platform.yaml"
TEAM = ("--queue", "lq-team-a", "--namespace", "team-a", "--image", "machine", "--cpu", "100m")
_ENDS_WITHIN = 120

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap: pods cannot have volumes"),
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pods may mount."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, checkpoints: Path) -> Iterator[UpProcess]:
    """One platform with the queues of the training example."""
    with local_platform(tmp_path_factory.mktemp("platform"), "--host-path", str(checkpoints)) as started:
        started.kubectl("apply", "-f", str(QUEUES))
        yield started


def start_submit(platform: UpProcess, *arguments: str) -> "subprocess.Popen[str]":
    """The running command in the queue of team a."""
    command = [sys.executable, "-m", "batchyard", "submit", "--data-dir", str(platform.kubeconfig.parent)]
    return subprocess.Popen([*command, *TEAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_submit(platform: UpProcess, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    with start_submit(platform, *arguments) as process:
        printed, reported = process.communicate(timeout=_ENDS_WITHIN)
        return process.returncode, printed, reported


def test_submit_runs_in_shipped_folder_and_returns_exit_code_of_command(platform: UpProcess, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "said.txt").write_text("shipped\n")
    (tmp_path / "run.sh").write_text('cat parts/said.txt; echo "$GREETING $1" >&2; printf "no newline"; exit 7')
    code, printed, reported = run_submit(platform, str(tmp_path), "-e", "GREETING=hello", "--", "sh", "run.sh", "you")
    assert code == 7, reported
    for part in ("shipped\n", "hello you\n", "no newline"):  # the order of the two streams is undefined
        assert part in printed
        printed = printed.replace(part, "", 1)
    assert printed.strip() == ""


WITHOUT_WATCH_OF_PODS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: blind, namespace: team-a}
rules:
- {apiGroups: [""], resources: [pods, pods/log], verbs: [get, list]}
- {apiGroups: [batch], resources: [jobs], verbs: [create, get, list, watch]}
- {apiGroups: [kueue.x-k8s.io], resources: [localqueues, workloads], verbs: [get, list, watch]}
"""


def test_submit_prints_all_lines_without_permission_to_watch_pods(platform: UpProcess, tmp_path: Path) -> None:
    platform.kubectl("create", "serviceaccount", "blind", "--namespace", "team-a")
    platform.kubectl("create", "-f", "-", sent=WITHOUT_WATCH_OF_PODS)
    account = ("--role=blind", "--serviceaccount=team-a:blind", "--namespace", "team-a")
    platform.kubectl("create", "rolebinding", "blind", *account)
    token = platform.kubectl("create", "token", "blind", "--namespace", "team-a").strip()
    own = tmp_path / "kubeconfig"
    shutil.copy(platform.kubeconfig, own)
    kubectl(own, "config", "set-credentials", "blind", f"--token={token}")
    kubectl(own, "config", "set-context", "--current", "--user=blind")
    command = [sys.executable, "-m", "batchyard", "submit", "--kubeconfig", str(own), *TEAM, "--", "echo", "said"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ENDS_WITHIN)
    assert (done.returncode, done.stdout) == (0, "said\n"), done.stderr


def test_sigterm_reaches_command_and_checkpoints_outlive_pod(
    platform: UpProcess, checkpoints: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(
        'trap "touch $CHECKPOINT_DIR/saved; exit 143" TERM; echo up; while :; do sleep 0.1; done'
    )
    options = (str(tmp_path), "--checkpoint-dir", str(checkpoints / "mine"), "--name", "stopped")
    with start_submit(platform, *options, "--", "sh", "run.sh") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        platform.kubectl("delete", "job", "stopped", "-n", "team-a", "--cascade=foreground", PATIENCE)
        assert process.wait(_ENDS_WITHIN) == 1
    assert (checkpoints / "mine" / "saved").exists()


def test_submit_reports_disallowed_checkpoint_folder(platform: UpProcess, tmp_path: Path) -> None:
    with start_submit(platform, "--checkpoint-dir", str(tmp_path), "--name", "refused", "--", "true") as process:
        assert process.stderr is not None
        assert any(f"hostPath {tmp_path} is not allowed here" in line for line in process.stderr)
        platform.kubectl("delete", "job", "refused", "-n", "team-a", PATIENCE)


def test_interrupted_submit_leaves_job_running(platform: UpProcess) -> None:
    with start_submit(platform, "--name", "left", "--", "sh", "-c", "echo up; sleep 3; echo down") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(_ENDS_WITHIN) == 130
    platform.kubectl("wait", "job/left", "-n", "team-a", "--for=condition=Complete", PATIENCE)
    assert platform.kubectl("logs", "job/left", "-n", "team-a") == "up\ndown\n"


FUNCTIONS = """
import os
from batchyard import RemoteJobError, job

class OddError(Exception):
    pass

@job(queue="lq-team-a", namespace="team-a", cpus="100m", image="machine", folder="lib", env={"A": "b"})
def double(x):
    import helper
    if x < 0:
        raise OddError(f"{x} is negative")
    if x == 99:
        os._exit(9)
    return {"value": helper.twice(x), "pid": os.getpid(), "a": os.environ["A"]}

if __name__ == "__main__":
    first = double.submit(4)
    found = first.result(timeout=100)
    assert found["value"] == 8 and found["pid"] != os.getpid() and found["a"] == "b", found
    assert first.done()
    values = double.map([1, -2, 3], parallelism=2).result(100, return_exceptions=True)
    assert [str(v) if isinstance(v, OddError) else v["value"] for v in values] == [2, "-2 is negative", 6], values
    try:
        double.submit(99).result(100)
    except RemoteJobError as error:
        assert "Job has reached the specified backoff limit; pod double-" in str(error), error
        assert ": exit code 9, Error" in str(error), error
    deleted = double.submit(1)
    deleted.cancel()
    try:
        deleted.result(100)
    except RemoteJobError as error:
        assert str(error).endswith("was deleted"), error
    double.submit(-1).result(100)
"""


def test_python_function_runs_as_job(platform: UpProcess, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper.py").write_text("def twice(x): return 2 * x")
    (tmp_path / "work.py").write_text(FUNCTIONS)
    environment = {**os.environ, "KUBECONFIG": str(platform.kubeconfig), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "work.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=_ENDS_WITHIN, check=False
    )
    lines = done.stderr.splitlines()
    assert lines[-1].endswith("OddError: -1 is negative")
    assert any("/batchyard/call/source.py" in line for line in lines), "the traceback of the pod"
