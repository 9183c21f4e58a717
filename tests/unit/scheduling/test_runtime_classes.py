"""The overhead of a RuntimeClass counts as quota of its pods."""

from typing import Any

import make
from unit.scheduling.test_scheduler import open_stage, pass_time, state
from yard import queue, workload


def runtime_class(cpu: str) -> dict[str, Any]:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": make.metadata("kata", None),
        "handler": "kata",
        "overhead": {"podFixed": {"cpu": cpu}},
    }


def pods(**spec: Any) -> Any:
    return {**make.pod_set(), "template": make.pod_template(runtimeClassName="kata", **spec)}


def test_overhead_of_runtime_class_is_counted() -> None:
    stage = open_stage(queue("cq", 3))
    stage.put(runtime_class("1"))
    stage.put(workload("a", pod_sets=[pods()]), workload("own", pod_sets=[pods(overhead={"cpu": "500m"})]))
    assert stage.workload("a")["status"]["admission"]["podSetAssignments"][0]["resourceUsage"] == {"cpu": "2"}
    assert state(stage, "own") == "pending"


def test_pending_workload_is_retried_when_runtime_class_changes() -> None:
    stage = open_stage(queue("cq", 2))
    stage.put(runtime_class("2"))
    stage.put(workload("a", pod_sets=[pods()]))
    pass_time(stage, 3)
    assert state(stage, "a") == "pending"
    stage.put(runtime_class("1"))
    pass_time(stage, 6)
    assert state(stage, "a") == "admitted"
