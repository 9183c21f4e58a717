"""Teams on one platform: what kubectl tells the people of one of what is another's."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_platform.running import Running, kubectl

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
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The kubeconfigs of one person of each team, and of the owner, of one platform."""
    folder = tmp_path_factory.mktemp("platform")
    with Running(folder) as platform:
        platform.kubectl(
            "apply", "-f", "-", sent=PLATFORM + "".join(TEAM.replace("TEAM", team) for team in ("team-a", "team-b"))
        )
        found = {"owner": platform.kubeconfig}
        for team in ("team-a", "team-b"):
            platform.kubectl(
                *("create", "rolebinding", "edit", "-n", team, "--clusterrole=edit", f"--group={team}"),
            )
            command = [sys.executable, "-m", "batchyard", "user", f"of-{team}", "--group", team, "-n", team]
            subprocess.run([*command, "--data-dir", str(folder)], check=True, capture_output=True)
            found[team] = folder / "users" / f"of-{team}.kubeconfig"
        yield found


def job(name: str, queue: str) -> str:
    return JOB.replace("NAME", name).replace("QUEUE", queue)


def test_people_work_in_their_own_team(people: dict[str, Path]) -> None:
    assert kubectl(people["team-a"], "create", "-f", "-", sent=job("mine", "of-team-a")) == "job.batch/mine created\n"
    kubectl(people["team-a"], "wait", "--for=condition=Admitted", "workloads", "--all", "--timeout=20s")
    assert "mine" in kubectl(people["team-a"], "get", "jobs,workloads")
    assert kubectl(people["team-a"], "auth", "can-i", "create", "jobs") == "yes\n"


def test_people_see_nothing_of_another_team(people: dict[str, Path]) -> None:
    reported = kubectl(people["team-b"], "get", "jobs", "-n", "team-a", fails=True)
    wanted = 'cannot list resource "jobs" in API group "batch" in the namespace "team-a"'
    assert reported == f'Error from server (Forbidden): jobs.batch is forbidden: User "of-team-b" {wanted}\n'
    assert "Forbidden" in kubectl(people["team-b"], "get", "secrets", "--all-namespaces", fails=True)
    assert kubectl(people["team-b"], "auth", "can-i", "get", "workloads", "-n", "team-a", fails=True) == "no\n"


def test_a_queue_of_another_team_takes_nothing(people: dict[str, Path]) -> None:
    intruder = job("x", "of-team-a")
    assert "Forbidden" in kubectl(people["team-b"], "create", "-n", "team-a", "-f", "-", sent=intruder, fails=True)
    kubectl(people["team-b"], "create", "-f", "-", sent=job("astray", "of-team-a"))
    found = kubectl(people["owner"], "get", "workloads", "-n", "team-b", "-o", "jsonpath={.items[*].status.admission}")
    assert found == ""


def test_rights_are_not_to_be_taken(people: dict[str, Path]) -> None:
    for attempt in (
        ("create", "rolebinding", "more", "--clusterrole=admin", "--user=of-team-b"),
        ("create", "clusterrolebinding", "more", "--clusterrole=cluster-admin", "--user=of-team-b"),
        ("get", "nodes", "--as=admin", "--as-group=system:masters"),
        ("create", "token", "default", "-n", "team-a"),
        ("delete", "clusterqueue", "shared"),
    ):
        assert "forbidden" in kubectl(people["team-b"], *attempt, fails=True)


def test_tokens_of_accounts_have_the_rights_of_their_accounts(people: dict[str, Path]) -> None:
    token = kubectl(people["team-a"], "create", "token", "default", "--duration=10m").strip()
    nobody = people["owner"].with_name("nobody")
    lines = (line for line in people["owner"].read_text("utf-8").splitlines() if "client-" not in line)
    nobody.write_text("\n".join(lines).replace("user:\n", "user: {}\n"), "utf-8")
    with_token = ("--token", token, "-n", "team-a")
    assert "system:serviceaccount:team-a:default" in kubectl(nobody, *with_token, "auth", "whoami")
    assert "Forbidden" in kubectl(nobody, *with_token, "get", "jobs", fails=True)
    kubectl(
        people["owner"],
        "create",
        "rolebinding",
        "it",
        "-n",
        "team-a",
        "--clusterrole=view",
        "--serviceaccount=team-a:default",
    )
    assert "mine" in kubectl(nobody, *with_token, "get", "jobs")
    kubectl(people["owner"], "delete", "serviceaccount", "default", "-n", "team-a")
    assert "logged in" in kubectl(nobody, *with_token, "get", "jobs", fails=True)
