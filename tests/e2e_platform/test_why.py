"""`batchyard why` on a running platform: the situations of the examples, and hidden names."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.platform_process import UpProcess, kubectl

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

EXAMPLES = Path(__file__).parents[2] / "examples" / "why"
SITUATIONS = ["borrowing", "head-of-line", "lending", "maximum", "nominal", "priority", "taint"]
HIDDEN = """
apiVersion: v1
kind: Namespace
metadata: {name: neighbour}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: jobs, namespace: neighbour}
spec: {clusterQueue: lab-queue}
---
apiVersion: batch/v1
kind: Job
metadata: {name: theirs, namespace: neighbour, labels: {kueue.x-k8s.io/queue-name: jobs}}
spec:
  suspend: true
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: 3}}}]}}
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform with seven situations, applied one after the other."""
    folder = tmp_path_factory.mktemp("platform")
    with UpProcess(folder, "--sync", "process") as started:
        for name in SITUATIONS:
            started.kubectl("apply", "-f", str(EXAMPLES / f"{name}.yaml"))
        yield started


def asked(platform: UpProcess, *arguments: str, kubeconfig: str = "") -> "subprocess.CompletedProcess[str]":
    """The result of the command."""
    where = ("--kubeconfig", kubeconfig) if kubeconfig else ("--data-dir", str(platform.kubeconfig.parent))
    command = [sys.executable, "-m", "batchyard", "why", *arguments, *where]
    return subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)


def document(platform: UpProcess, *arguments: str) -> dict[str, Any]:
    done = asked(platform, *arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    ("namespace", "job", "limit", "change"),
    [
        ("lab", "report", "nominal", "quota"),
        ("red", "burst", "borrowing", "quota"),
        ("green", "burst", "lending", "quota"),
        ("small", "too-large", "maximum", "size"),
        ("spot", "delicate", "taint", "flavor"),
        ("strict", "small", "headOfLine", "strategy"),
        ("rank", "equal", "priority", "priority"),
    ],
)
def test_example_situations_are_explained(
    platform: UpProcess, namespace: str, job: str, limit: str, change: str
) -> None:
    platform.kubectl("wait", "--for=create", f"job/{job}", "-n", namespace, "--timeout=30s")
    result = document(platform, f"job/{job}", "-n", namespace)
    assert (result["state"], result["binding"]["limit"]) == ("Pending", limit)
    assert change in [each["kind"] for each in result["changes"]]


def test_suggested_change_admits_workload_when_applied(platform: UpProcess) -> None:
    result = document(platform, "job/burst", "-n", "red")
    (patch,) = result["changes"][0]["apply"]
    reported = (
        "patch",
        patch["kind"].lower(),
        patch["name"],
        "--type",
        patch["type"],
        "-p",
        json.dumps(patch["patch"]),
    )
    platform.kubectl(*reported)
    platform.kubectl("wait", "--for=condition=Admitted", "workloads", "--all", "-n", "red", "--timeout=30s")


def test_why_prints_plain_text_for_cluster_queue(platform: UpProcess) -> None:
    done = asked(platform, "clusterqueue/strict-queue")
    assert done.stdout.startswith(
        "ClusterQueue strict-queue: Active\n2 pending Workloads; the first is strict/job-large-"
    )


def test_unknown_job_error_suggests_similar_names(platform: UpProcess) -> None:
    done = asked(platform, "job/repor", "-n", "lab")
    assert (done.returncode, "job repor not found in namespace lab; similar names: report" in done.stderr) == (1, True)
    assert asked(platform, "node/x").returncode == 2


def test_job_of_other_namespace_is_pointed_out(platform: UpProcess) -> None:
    done = asked(platform, "job/report")
    message = "batchyard: job report not found in namespace default; found in lab (use -n lab)\n"
    assert (done.returncode, done.stderr) == (1, message)


def test_why_hides_names_of_other_namespaces_from_team_member(platform: UpProcess) -> None:
    platform.kubectl("apply", "-f", "-", sent=HIDDEN)
    platform.kubectl("create", "rolebinding", "anna", "--clusterrole=view", "--user=anna", "--namespace=neighbour")
    folder = platform.kubeconfig.parent
    user = [sys.executable, "-m", "batchyard", "user", "anna", "--namespace", "neighbour", "--data-dir", str(folder)]
    subprocess.run(user, check=True, capture_output=True)
    hers = folder / "users" / "anna.kubeconfig"
    done = asked(platform, "job/theirs", "-o", "json", kubeconfig=str(hers))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["holders"][0]["workload"] == "a Workload of another namespace"
    assert "sweep" not in done.stdout
    refused = asked(platform, "job/report", "-n", "lab", kubeconfig=str(hers))
    assert "ask an administrator for the ClusterRole view in namespace lab" in refused.stderr
    assert (refused.returncode, "cannot get resource" in refused.stderr) == (1, True)


def test_kubectl_reads_why_subresource(platform: UpProcess) -> None:
    path = "/apis/batch/v1/namespaces/lab/jobs/report/why"
    assert json.loads(kubectl(platform.kubeconfig, "get", "--raw", path))["kind"] == "Explanation"
