"""Workloads in Namespaces with LimitRanges: their requests include the defaults of the LimitRange."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.scheduling.workload.lifecycle import status
from stage import Stage, condition_state
from yard import queue


def open_stage(*objects: Any) -> Stage:
    stage = Stage(Scheduler(SchedulerCache(), SchedulingPolicy()), WorkloadLifecycle())
    stage.put(make.namespace(), make.flavor("spot"), queue("cq", 5), make.local_queue("cq", cluster_queue="cq"))
    stage.put(*objects)
    return stage


def limits(name: str = "usual", **fields: Any) -> dict[str, Any]:
    spec = {"limits": [{"type": "Container", **fields}]}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": make.metadata(name), "spec": spec}


def single_pod(name: str, **resources: Any) -> dict[str, Any]:
    """A Workload of one pod with these resources only."""
    created = make.workload(name, queue="cq")
    container = {"name": "c", "image": "i", "resources": resources}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {**created, "spec": {**created["spec"], "podSets": [{"name": "main", "count": 1, "template": template}]}}


def usage(stage: Stage, name: str) -> Any:
    (assignment,) = stage.workload(name)["status"]["admission"]["podSetAssignments"]
    return assignment["resourceUsage"]


def test_limit_range_defaults_are_added_to_requests() -> None:
    stage = open_stage(limits(defaultRequest={"cpu": "2"}), limits("more", default={"cpu": "3"}))
    stage.put(single_pod("a"), single_pod("b", requests={"cpu": "1"}), single_pod("c", limits={"cpu": "4"}))
    assert [usage(stage, name)["cpu"] for name in "abc"] == ["2", "1", "2"]
    assert stage.workload("a")["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"] == {}


def test_workload_outside_limit_range_waits_and_reports_reason() -> None:
    stage = open_stage(limits(max={"cpu": "2"}, min={"cpu": "1"}), single_pod("big", requests={"cpu": "3"}))
    stage.put(single_pod("small", requests={"cpu": "500m"}))
    stage.run(2)
    place = 'spec.podSets[0].template.spec.containers[0]: Invalid value: ["cpu"]: requests must not be'
    start = f"resources didn't satisfy LimitRange constraints: {place}"
    assert condition_state(stage.workload("big"), "QuotaReserved")[2] == f"{start} above the limitRange max"
    assert condition_state(stage.workload("small"), "QuotaReserved")[2] == f"{start} below the limitRange min"


def test_pending_workload_is_retried_when_limit_range_changes() -> None:
    stage = open_stage(limits(defaultRequest={"cpu": "6"}), single_pod("a"))
    assert status(stage.workload("a")).value == "pending"
    stage.put(limits(defaultRequest={"cpu": "4"}))
    assert usage(stage, "a") == {"cpu": "4"}
    stage.put(limits(max={"cpu": "500m"}), single_pod("b", requests={"cpu": "1"}))
    assert status(stage.workload("b")).value == "pending"
    stage.delete(scheme.LIMIT_RANGE, "usual")
    assert status(stage.workload("b")).value == "admitted"


def test_pod_limit_applies_to_sum_of_containers() -> None:
    bounds = limits()
    bounds["spec"]["limits"] = [{"type": "Pod", "max": {"cpu": "1"}}]
    stage = open_stage(bounds, single_pod("a", requests={"cpu": "2"}))
    stage.run(2)
    assert "spec.podSets[0].template.spec: Invalid value" in condition_state(stage.workload("a"), "QuotaReserved")[2]


def test_workload_without_pod_sets_does_not_block_scheduler() -> None:
    empty = single_pod("empty")
    del empty["spec"]["podSets"]
    stage = open_stage(limits(defaultRequest={"cpu": "2"}, max={"cpu": "3"}), empty, single_pod("a"))
    assert usage(stage, "a") == {"cpu": "2"}
