"""Queued distributed training of examples/training in pods of this machine. Needs `make torch`."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_local_pods.node import follow_output, local_platform
from e2e_platform.platform_process import UpProcess

ROOT = Path(__file__).parent.parent.parent
TRAINING = ROOT / "examples" / "training"
TORCH = ROOT / ".torch"
MEANS_NO_TORCH = "there is no .torch: say make torch"
LOST = re.compile(r"done: step \d+ loss (\S+) weights (\S+)")

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine"),
    pytest.mark.skipif(not (TORCH / ".made").exists(), reason=MEANS_NO_TORCH),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap: pods cannot have volumes"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of checkpoints."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[UpProcess]:
    """One platform with the queues of the example, and its scripts in both namespaces."""
    data = tmp_path_factory.mktemp("platform")
    with local_platform(data, "--image", f"example/pytorch*={TORCH}", "--host-path", str(folder)) as started:
        started.kubectl("apply", "-f", str(TRAINING / "platform.yaml"))
        scripts = [f"--from-file={TRAINING / name}" for name in ("train.py", "checkpoints.py")]
        for team in ("team-a", "team-b"):
            started.kubectl("create", "configmap", "training", "-n", team, *scripts)
        yield started


def manifest(name: str, folder: Path, steps: int) -> str:
    """A manifest of the example with fewer steps, whose checkpoints are in a folder."""
    text = (TRAINING / name).read_text("utf-8")
    text = re.sub(r"--steps \d+ --seconds-per-step [\d.]+", f"--steps {steps} --seconds-per-step 0.2", text)
    return text.replace("/var/tmp/batchyard-training", str(folder))


def last_losses(platform: UpProcess, job: str, namespace: str) -> set[tuple[str, str]]:
    """Final loss and weights of the pods of a Job."""
    reported = platform.kubectl("logs", "-n", namespace, "--selector", f"job-name={job}", "--tail=-1")
    return set(LOST.findall(reported))


def test_preempted_training_resumes_and_ends_with_same_loss(platform: UpProcess, folder: Path) -> None:
    platform.kubectl("apply", "-f", "-", sent=manifest("jobs.yaml", folder, 60))
    first = "--selector=job-name=train-a"
    wait_for_step(platform, "train-a")
    platform.kubectl("apply", "-f", "-", sent=manifest("urgent.yaml", folder, 5))
    wait_until_complete(platform, "train-urgent", "team-a")
    wait_until_complete(platform, "train-a", "team-a")
    wait_until_complete(platform, "train-b", "team-b")
    reported = platform.kubectl("logs", "-n", "team-a", first, "--tail=-1")
    assert "resumed from step" in reported
    events = platform.kubectl("get", "events", "-n", "team-a", "-o", "jsonpath={.items[*].reason}")
    assert "EvictedDueToPreempted" in events
    (loss,) = last_losses(platform, "train-a", "team-a")
    assert last_losses(platform, "train-b", "team-b") == {loss}


def wait_for_step(platform: UpProcess, job: str) -> None:
    """Wait until a training has done some steps."""
    platform.kubectl("wait", "-n", "team-a", "--for=jsonpath={.status.ready}=2", f"job/{job}", "--timeout=120s")
    follow = ["logs", "-f", "-n", "team-a", f"job/{job}"]
    with follow_output(platform, *follow) as lines:
        assert any("step 3 " in line for line in lines)


def wait_until_complete(platform: UpProcess, job: str, namespace: str) -> None:
    """Wait until a Job is complete; a busy machine loads PyTorch slowly in eight processes."""
    seen = ("get", "job", job, "-n", namespace, "-o", "jsonpath={.status.conditions[*].type}")
    for _ in range(6):
        if "Complete" in platform.kubectl(*seen):
            return
        watching = ["get", "job", job, "-n", namespace, "-w", "--request-timeout=40s", "-o", seen[-1] + "{'\\n'}"]
        with follow_output(platform, *watching) as lines:
            any("Complete" in line for line in lines)
    raise AssertionError(f"{job} did not complete")
