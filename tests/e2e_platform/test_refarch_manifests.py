"""The unmodified manifests of the reference architecture on an accelerated platform."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e_platform.platform_process import UpProcess

ROOT = Path(__file__).parents[2]
THEIRS = ROOT.parent / "shared" / "refarch"
SLEEPERS = ROOT.parent / "shared" / "dws"

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine"),
    pytest.mark.skipif(not THEIRS.is_dir(), reason="the reference manifests are not beside this repository"),
]


def until(look: Callable[[], str], text: str) -> str:
    """The first output that contains a text."""
    return next(seen for seen in iter(look, None) if text in seen)


def test_high_priority_jobs_preempt_low_priority_jobs(tmp_path: Path) -> None:
    cluster = ROOT / "examples/refarch/cluster.yaml"
    with UpProcess(tmp_path / "data", "--cluster", str(cluster), "--speed", "5x") as platform:
        for part in ("teams", "priorityclass", "kueue"):
            platform.kubectl("apply", "-f", str(THEIRS / "platform" / part))
        platform.kubectl("apply", "-R", "-f", str(THEIRS / "low_priority/workloads"))
        columns = "custom-columns=N:.metadata.name,A:.status.admission.podSetAssignments[0].flavors"
        lows = lambda: platform.kubectl("get", "workloads", "-n", "team-a", "-o", columns, "--sort-by=.metadata.name")  # noqa: E731
        until(lows, "gpu-l4-reserved")
        platform.kubectl("apply", "-R", "-f", str(THEIRS / "high_priority/workloads"))
        events = lambda: platform.kubectl("get", "events", "-A", "--field-selector=reason=Preempted")  # noqa: E731
        seen = until(events, "due to reclamation within the cohort")
        victims = [line.split()[4] for line in seen.splitlines()[1:]]
        assert victims
        assert all("-low-priority-job-" in victim for victim in victims)


def test_simulated_sleep_container_runs_for_its_argument(tmp_path: Path) -> None:
    cluster = ROOT / "examples/dws/cluster.yaml"
    with UpProcess(tmp_path / "data", "--cluster", str(cluster), "--speed", "60x") as platform:
        platform.kubectl("apply", "-f", str(ROOT / "examples/dws/platform.yaml"))
        platform.kubectl("apply", "-f", str(SLEEPERS / "sample-job.yaml"))
        requests = lambda: platform.kubectl("get", "provisioningrequests")  # noqa: E731
        assert until(requests, "True").split()[:5] == ["NAME", "ACCEPTED", "PROVISIONED", "FAILED", "AGE"]
        platform.kubectl("wait", "--for=condition=complete", "job/sample-job", "--timeout=50s")
        state = "jsonpath={.items[0].status.containerStatuses[0].state.terminated['startedAt','finishedAt']}"
        started, finished = platform.kubectl("get", "pods", "-o", state).split()
        minutes = [int(text[14:16]) * 60 + int(text[17:19]) for text in (started, finished)]
        assert (minutes[1] - minutes[0]) % 3600 == 120


def test_runtime_option_applies_only_without_other_run_time(tmp_path: Path) -> None:
    with UpProcess(tmp_path / "data", "--speed", "60x", "--runtime", "1000h") as platform:
        platform.kubectl("run", "long", "--image=pytorch", "--restart=Never")
        platform.kubectl("run", "short", "--image=busybox", "--restart=Never", "--command", "--", "sleep", "1")
        pods = lambda: platform.kubectl("get", "pods")  # noqa: E731
        until(pods, "Completed")
        platform.kubectl("run", "later", "--image=busybox", "--restart=Never", "--command", "--", "sleep", "90")
        until(lambda: platform.kubectl("get", "pod", "later"), "Completed")
        assert "Running" in platform.kubectl("get", "pod", "long")
