"""The estimated order of the pending jobs of a queue, on servers without Kueue's visibility API."""

from typing import Any

import make
from batchyard.cli.daily.jobs import job_entries
from batchyard.cli.daily.queue import PendingJobSources, estimate_queue_order


def workload(name: str, *, seconds: int = 0, queue: str = "lq", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": make.metadata(name, creationTimestamp=make.stamp(seconds)),
        "spec": {"queueName": queue, "podSets": [make.pod_set()], **spec},
    }


def test_estimated_line_is_by_priority_then_age_without_inactive_and_other_workloads() -> None:
    workloads = [
        workload("late", seconds=9),
        workload("early", seconds=1),
        workload("high", seconds=5, priority=10, queue="second"),
        workload("off", active=False),
        workload("elsewhere", queue="other"),
    ]
    queues = [make.local_queue(), make.local_queue("second"), make.local_queue("other", cluster_queue="cq2")]
    entries = {(entry.namespace, entry.workload_name): entry for entry in job_entries(workloads, (), None)}
    line = list(estimate_queue_order(PendingJobSources(queues, entries), "cq"))
    assert [(job.workload_name, job.place, job.local_place) for job in line] == [
        ("high", 1, 1),
        ("early", 2, 1),
        ("late", 3, 2),
    ]
    assert (line[0].requests, line[0].queue) == ("1 cpu", "second")
