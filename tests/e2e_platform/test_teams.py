"""Teams on one platform: kubectl keeps objects of one team from members of another."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_platform.platform_process import UpProcess, kubectl

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

PLATFORM = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: plain}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: shared}
spec:
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: plain, resources: [{name: cpu, nominalQuota: 4}]}]
---
"""
TEAM = """
apiVersion: v1
kind: Namespace
metadata: {name: TEAM}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: of-TEAM, namespace: TEAM}
spec: {clusterQueue: shared}
---
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  name: NAME
  labels: {kueue.x-k8s.io/queue-name: QUEUE}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]
"""


@pytest.fixture(scope="module")
def kubeconfigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The kubeconfigs of a member of each team and of the owner of a platform."""
    folder = tmp_path_factory.mktemp("platform")
    with UpProcess(folder) as platform:
        platform.kubectl(
            "apply", "-f", "-", sent=PLATFORM + "".join(TEAM.replace("TEAM", team) for team in ("team-a", "team-b"))
        )
        result = {"owner": platform.kubeconfig}
        for team in ("team-a", "team-b"):
            platform.kubectl(*("create", "rolebinding", "edit", "-n", team, "--clusterrole=edit", f"--group={team}"))
            command = [sys.executable, "-m", "batchyard", "user", f"of-{team}", "--group", team, "-n", team]
            subprocess.run([*command, "--data-dir", str(folder)], check=True, capture_output=True)
            result[team] = folder / "users" / f"of-{team}.kubeconfig"
        yield result


def job(name: str, queue: str) -> str:
    return JOB.replace("NAME", name).replace("QUEUE", queue)


def test_member_creates_and_lists_jobs_in_own_team(kubeconfigs: dict[str, Path]) -> None:
    assert (
        kubectl(kubeconfigs["team-a"], "create", "-f", "-", sent=job("mine", "of-team-a")) == "job.batch/mine created\n"
    )
    kubectl(kubeconfigs["team-a"], "wait", "--for=condition=Admitted", "workloads", "--all", "--timeout=20s")
    assert "mine" in kubectl(kubeconfigs["team-a"], "get", "jobs,workloads")
    assert kubectl(kubeconfigs["team-a"], "auth", "can-i", "create", "jobs") == "yes\n"


def test_member_cannot_read_objects_of_another_team(kubeconfigs: dict[str, Path]) -> None:
    reported = kubectl(kubeconfigs["team-b"], "get", "jobs", "-n", "team-a", fails=True)
    expected = 'cannot list resource "jobs" in API group "batch" in the namespace "team-a"'
    assert reported == f'Error from server (Forbidden): jobs.batch is forbidden: User "of-team-b" {expected}\n'
    assert "Forbidden" in kubectl(kubeconfigs["team-b"], "get", "secrets", "--all-namespaces", fails=True)
    assert kubectl(kubeconfigs["team-b"], "auth", "can-i", "get", "workloads", "-n", "team-a", fails=True) == "no\n"


def test_queue_of_another_team_does_not_admit_job(kubeconfigs: dict[str, Path]) -> None:
    intruder = job("x", "of-team-a")
    assert "Forbidden" in kubectl(kubeconfigs["team-b"], "create", "-n", "team-a", "-f", "-", sent=intruder, fails=True)
    kubectl(kubeconfigs["team-b"], "create", "-f", "-", sent=job("astray", "of-team-a"))
    result = kubectl(
        kubeconfigs["owner"], "get", "workloads", "-n", "team-b", "-o", "jsonpath={.items[*].status.admission}"
    )
    assert result == ""


def test_member_cannot_escalate_permissions(kubeconfigs: dict[str, Path]) -> None:
    for attempt in (
        ("create", "rolebinding", "more", "--clusterrole=admin", "--user=of-team-b"),
        ("create", "clusterrolebinding", "more", "--clusterrole=cluster-admin", "--user=of-team-b"),
        ("get", "nodes", "--as=admin", "--as-group=system:masters"),
        ("create", "token", "default", "-n", "team-a"),
        ("delete", "clusterqueue", "shared"),
    ):
        assert "forbidden" in kubectl(kubeconfigs["team-b"], *attempt, fails=True)


def test_service_account_token_has_permissions_of_its_account(kubeconfigs: dict[str, Path]) -> None:
    token = kubectl(kubeconfigs["team-a"], "create", "token", "default", "--duration=10m").strip()
    anonymous = kubeconfigs["owner"].with_name("nobody")
    lines = (line for line in kubeconfigs["owner"].read_text("utf-8").splitlines() if "client-" not in line)
    anonymous.write_text("\n".join(lines).replace("user:\n", "user: {}\n"), "utf-8")
    with_token = ("--token", token, "-n", "team-a")
    assert "system:serviceaccount:team-a:default" in kubectl(anonymous, *with_token, "auth", "whoami")
    assert "Forbidden" in kubectl(anonymous, *with_token, "get", "jobs", fails=True)
    kubectl(
        kubeconfigs["owner"],
        "create",
        "rolebinding",
        "it",
        "-n",
        "team-a",
        "--clusterrole=view",
        "--serviceaccount=team-a:default",
    )
    assert "mine" in kubectl(anonymous, *with_token, "get", "jobs")
    kubectl(kubeconfigs["owner"], "delete", "serviceaccount", "default", "-n", "team-a")
    assert "logged in" in kubectl(anonymous, *with_token, "get", "jobs", fails=True)
