"""Costs of a live platform: exact to the microsecond after `kill -9`, and visible only to their own team."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchyard.api.times import parse_time
from batchyard.base.instant import SECOND
from e2e_platform.platform_process import UpProcess, kubectl

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

CLUSTER = """
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec:
  zones: [us-central1-a]
  prices: {e2-standard-4: {onDemand: 1}}
  nodePools: [{name: base, machineType: e2-standard-4, nodeCount: 2}]
"""
PLATFORM = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: base}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: shared}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: base, resources: [{name: cpu, nominalQuota: 6}]}]
"""
TEAM = """
---
apiVersion: v1
kind: Namespace
metadata: {name: TEAM}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: main, namespace: TEAM}
spec: {clusterQueue: shared}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  namespace: TEAM
  labels: {kueue.x-k8s.io/queue-name: main}
  annotations: {batchyard.dev/runtime: 40m}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]
"""
BUDGET = """
apiVersion: cost.batchyard.dev/v1alpha1
kind: Budget
metadata: {name: none-left, namespace: red}
spec: {dollars: "0", period: Day}
"""


def cost(*arguments: str) -> Any:
    """The output of `batchyard cost`."""
    command = (sys.executable, "-m", "batchyard", "cost", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "json" in arguments else done.stdout + done.stderr


def machines(platform: UpProcess) -> tuple[int, int]:
    """Recorded microseconds of machines, and their actual microseconds with the precision of a second."""
    records = json.loads(platform.kubectl("get", "costrecords", "-n", "kube-system", "-o", "json"))["items"]
    hours = [each["spec"] for each in records if each["metadata"]["name"] != "open"]
    instances = json.loads(platform.kubectl("get", "instances", "-o", "json"))["items"]
    through = max(parse_time(each["through"]) for each in hours)
    recorded = sum(row["nodeMicroseconds"] for each in hours for row in each["machines"])
    return recorded, sum(through - parse_time(each["status"]["startedAt"]) for each in instances)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory of a platform that was killed while two teams ran Jobs."""
    described = tmp_path / "cluster.yaml"
    described.write_text(CLUSTER, "utf-8")
    data = tmp_path / "data"
    with UpProcess(data, "--cluster", str(described), "--speed", "600x") as platform:
        platform.kubectl("apply", "-f", "-", sent=PLATFORM + "".join(TEAM.replace("TEAM", t) for t in ("red", "blue")))
        for team in ("red", "blue"):
            platform.kubectl("wait", "--for=jsonpath={.status.ready}=1", "job/train", "-n", team, "--timeout=50s")
        platform.kill()
    return data


def test_costs_are_recorded_exactly_once_across_kill(folder: Path) -> None:
    with UpProcess(folder, "--speed", "600x") as platform:
        for team in ("red", "blue"):
            platform.kubectl("wait", "--for=condition=Complete", "job/train", "-n", team, "--timeout=50s")
        platform.kubectl(
            "wait", "--for=jsonpath={.spec.closed}=true", "costrecord", "--all", "-n", "red", "--timeout=50s"
        )
        recorded, there = machines(platform)
        assert abs(recorded - there) <= 2 * SECOND  # instances have times of whole seconds
        result = cost("--data-dir", str(folder), "-o", "json")
        rows = {row["name"]: row for row in result["rows"]}
        assert rows["red"]["nodeHours"] == pytest.approx(rows["blue"]["nodeHours"], rel=0.05)
        cents = [int(row["dollars"].replace(".", "")) for row in (*result["rows"], result["total"])]
        assert sum(cents[:-1]) == cents[-1]
        assert rows["red"]["running"] == rows["red"]["lost"] == "0.00"


def test_team_sees_only_its_own_costs(folder: Path) -> None:
    with UpProcess(folder, "--speed", "600x") as platform:
        platform.kubectl("create", "rolebinding", "view", "-n", "red", "--clusterrole=view", "--group=red")
        command = [sys.executable, "-m", "batchyard", "user", "ann", "--group", "red", "-n", "red"]
        subprocess.run([*command, "--data-dir", str(folder)], check=True, capture_output=True)
        ann = folder / "users" / "ann.kubeconfig"
        reported = cost("--kubeconfig", str(ann))
        assert "red" in reported
        assert "blue" not in reported
        assert "limited to your own namespace" in reported
        assert "Forbidden" in kubectl(ann, "get", "costrecords", "-n", "blue", fails=True)
        assert "Forbidden" in kubectl(ann, "apply", "-f", "-", sent=BUDGET, fails=True)


def test_exceeded_budget_holds_queues_of_its_namespace(folder: Path) -> None:
    with UpProcess(folder, "--speed", "600x") as platform:
        platform.kubectl("apply", "-f", "-", sent=BUDGET)
        stopped = "--for=jsonpath={.spec.stopPolicy}=Hold"
        platform.kubectl("wait", stopped, "localqueue/main", "-n", "red", "--timeout=50s")
        platform.kubectl("wait", "--for=condition=Exceeded", "budget/none-left", "-n", "red", "--timeout=50s")
        assert "Held" in platform.kubectl("get", "budgets", "-n", "red")
        platform.kubectl("delete", "budget", "none-left", "-n", "red")
        platform.kubectl(
            "wait", "--for=jsonpath={.spec.stopPolicy}=None", "localqueue/main", "-n", "red", "--timeout=50s"
        )
