"""The text of `batchyard why`: which resource binds, how amounts and times are written, and how lines are wrapped."""

from pathlib import Path

import pytest

from batchyard.cli.commands.why import document_text_lines
from unit.cli.conftest import Batchyard

#: A ClusterQueue of 20 cpu and 64Gi of memory, in one resource group that names memory first.
QUEUES = """
apiVersion: v1
kind: Namespace
metadata: {name: lab}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: machines}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: lab-queue}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [memory, cpu]
    flavors:
    - name: machines
      resources:
      - {name: memory, nominalQuota: 64Gi}
      - {name: cpu, nominalQuota: 20}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lab, namespace: lab}
spec: {clusterQueue: lab-queue}
"""
JOB = """
---
apiVersion: batch/v1
kind: Job
metadata:
  name: %s
  namespace: lab
  labels: {kueue.x-k8s.io/queue-name: lab}
  annotations: {batchyard.dev/submit-at: %s, batchyard.dev/runtime: 1h}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: main, resources: {requests: {cpu: %s, memory: %s}}}
"""


@pytest.fixture
def answer(batchyard: Batchyard, tmp_path: Path) -> "Answer":
    """Asks about the last of some jobs, after a minute."""
    return Answer(batchyard, tmp_path / "jobs.yaml")


class Answer:
    """The lines of an answer of `batchyard why` about the last of some jobs."""

    def __init__(self, batchyard: Batchyard, file: Path) -> None:
        self._batchyard = batchyard
        self._file = file

    def lines(self, *requests: tuple[str, str], at: str = "1m") -> list[str]:
        """Return the answer about the last of the jobs, of which each requests (cpu, memory), submitted in turn."""
        jobs = [JOB % (f"job-{number}", f"{number}s", *request) for number, request in enumerate(requests)]
        self._file.write_text(QUEUES + "".join(jobs))
        subject = f"job/job-{len(requests) - 1}"
        finished = self._batchyard("why", subject, "-n", "lab", "-f", self._file, "--at", at)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout.splitlines()

    def quota_rows(self, *requests: tuple[str, str]) -> list[list[str]]:
        """Return the resource, the requested, missing and remaining cells of each row of the quota table."""
        lines = self.lines(*requests)
        start = next(number for number, line in enumerate(lines) if line.startswith("POD SET"))
        return [line.split()[2:] for line in lines[start + 1 : lines.index("", start)]]


@pytest.mark.parametrize(
    ("request_of_last", "expected"),
    [
        (("28", "4Gi"), {"cpu": "exceeds maximum capacity"}),
        (("12", "4Gi"), {"cpu": "short, nothing to preempt"}),
        (("1", "70Gi"), {"memory": "exceeds maximum capacity"}),
        (("12", "70Gi"), {"memory": "exceeds maximum capacity"}),
    ],
)
def test_verdict_stands_at_the_resource_that_binds(
    answer: Answer, request_of_last: tuple[str, str], expected: dict[str, str]
) -> None:
    rows = [" ".join(row) for row in answer.quota_rows(("10", "2Gi"), request_of_last)]
    found = {
        row.partition(" ")[0]: verdict
        for row in rows
        for verdict in ("exceeds maximum capacity", "short, nothing to preempt")
        if verdict in row
    }
    assert found == expected


def test_amounts_of_an_answer_have_one_spelling(answer: Answer) -> None:
    lines = answer.lines(("11500m", "1536Mi"), ("19500m", "512Mi"))
    text = "\n".join(lines)
    assert "19.5 cpu of flavor machines requested, 8.5 free, 11 more needed" in text
    assert "from 20 to 31 (+11)" in text
    assert "11.5 cpu machines" in text
    assert ["memory", "512Mi", "lab-queue", "64Gi", "1.5Gi", "62.5Gi"] in answer.quota_rows(
        ("11500m", "1536Mi"), ("19500m", "512Mi")
    )
    assert "00m" not in text


def test_raise_names_the_part_that_jobs_ahead_take(answer: Answer) -> None:
    text = " ".join(" ".join(answer.lines(("10", "1Gi"), ("11", "1Gi"), ("12", "1Gi"))).split())
    assert "nominalQuota of cpu in flavor machines from 20 to 33 (+13, 11 of it for jobs admitted first)" in text


def test_missing_amount_of_an_answer_is_one_number(answer: Answer) -> None:
    lines = answer.lines(("10", "1Gi"), ("28", "1Gi"))
    (limit,) = [line for line in lines if line.startswith("limit ")]
    assert limit.endswith("maximum at ClusterQueue lab-queue; missing 18 cpu machines")
    assert ["cpu", "28", "18"] in [row[:3] for row in answer.quota_rows(("10", "1Gi"), ("28", "1Gi"))]
    assert any("from 20 to 38 (+18)" in line for line in lines)


def test_single_change_is_not_called_one_of_several(answer: Answer) -> None:
    assert "This change would admit it. It was verified and is minimal:" in answer.lines(("28", "1Gi"))
    lines = answer.lines(("11500m", "1Gi"), ("19500m", "512Mi"))
    assert "Any one of these changes would admit it. Each was verified and is minimal:" in lines


def test_other_short_resources_are_named(answer: Answer) -> None:
    text = " ".join(answer.lines(("12", "62Gi"), ("12", "3Gi")))
    assert "the quota of ClusterQueue lab-queue is in use; cpu is also short" in text


def test_names_are_not_broken_between_lines() -> None:
    name = f"team-{'a-long-name-' * 12}end"
    document = {
        "subject": {"kind": "Job", "name": "train"},
        "state": "Pending",
        "summary": f"it waits for {name}, and then for {name}",
        "changes": [{"text": f"end or suspend {name}, {name}"}],
    }
    lines = list(document_text_lines(document, is_wide=False))
    assert sum(name in line for line in lines) == 4


SERVICE = """
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: lab, labels: {kueue.x-k8s.io/queue-name: lab}}
spec:
  replicas: %d
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: main, image: db, resources: {requests: {cpu: 12}}}]}
"""


@pytest.mark.parametrize(
    ("replicas", "remark", "text"),
    [
        (1, "0 of 1 pod wait in the queue; pod db-0 is explained", "Pod lab/db-0: Running"),
        (2, "1 of 1 pod wait in the queue; pod db-0 is explained", "missing 4 cpu machines"),
    ],
)
def test_pod_of_service_is_explained(
    batchyard: Batchyard, tmp_path: Path, replicas: int, remark: str, text: str
) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(QUEUES + SERVICE % replicas)
    done = batchyard("why", "sts/db", "-n", "lab", "-f", file)
    assert done.stderr == f"batchyard: StatefulSet lab/db: {remark}\n"
    assert text in done.stdout


def test_service_without_pods_is_reported(batchyard: Batchyard, tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(QUEUES + SERVICE % 0)
    done = batchyard("why", "sts/db", "-n", "lab", "-f", file)
    problem = "StatefulSet lab/db has no pods: check its replicas with kubectl describe statefulset"
    assert (done.returncode, done.stderr) == (1, f"batchyard: {problem}\n")


def test_holders_outside_queues_have_an_empty_queue() -> None:
    row = {"resource": "cpu", "flavor": "", "amount": "1"}
    holder = {"workload": "pods without a Workload", "nodes": ["vm"], "priority": 0, "holds": [row], "borrows": False}
    subject = {"kind": "Pod", "name": "a"}
    document = {"subject": subject, "state": "Pending", "summary": "no node fits", "holders": [holder]}
    lines = list(document_text_lines(document, is_wide=False))
    assert any("pods without a Workload" in line and "1 cpu" in line for line in lines)
