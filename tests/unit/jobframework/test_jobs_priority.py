"""The source of the priority of a job's Workload, and its changes."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_path
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.scheduling.workload import lifecycle
from stage import Stage

LABEL = "kueue.x-k8s.io/priority-class"


def priority(stage: Stage) -> tuple[int, str, str]:
    workload = stage.only_workload()
    ref: dict[str, Any] = workload["spec"].get("priorityClassRef") or {}
    return workload["spec"]["priority"], ref.get("kind", ""), ref.get("name", "")


def stage_with(*objects: Obj) -> Stage:
    stage = Stage(JobReconciler(JobIntegration()))
    stage.put(make.workload_priority_class("high", 100), make.priority_class("pods", 50), *objects)
    return stage


def job_with(pod_class: str | None = None, **labels: str) -> Obj:
    template = make.pod_template(priorityClassName=pod_class) if pod_class else make.pod_template()
    return make.job(labels=labels, template=template)


def test_priority_class_label_overrides_pod_priority_class() -> None:
    assert priority(stage_with(job_with("pods", **{LABEL: "high"}))) == (100, "WorkloadPriorityClass", "high")


def test_pod_priority_class_overrides_default() -> None:
    default = make.priority_class("default", 7, is_default=True)
    assert priority(stage_with(default, job_with("pods"))) == (50, "PriorityClass", "pods")
    assert priority(stage_with(default, job_with())) == (7, "PriorityClass", "default")


def test_lower_of_two_default_priority_classes_applies() -> None:
    defaults = [make.priority_class(f"d{value}", value, is_default=True) for value in (9, 4)]
    assert priority(stage_with(*defaults, job_with()))[0] == 4


def test_priority_defaults_to_zero() -> None:
    assert priority(stage_with(job_with())) == (0, "", "")


def test_missing_workload_priority_class_is_reported_and_awaited() -> None:
    stage = stage_with(job_with(**{LABEL: "later"}))
    assert stage.workloads() == []
    event = stage.events[0]
    assert (event.type, event.reason) == ("Warning", "WorkloadPriorityClassNotFound")
    assert event.message == 'WorkloadPriorityClass "later" not found'
    stage.put(make.workload_priority_class("later", 3))
    assert priority(stage)[0] == 3


def test_job_does_not_wait_for_previous_priority_class() -> None:
    controller = JobReconciler(JobIntegration())
    stage = Stage(controller)
    stage.put(job_with(**{LABEL: "later"}), job_with(**{LABEL: "never"}))
    added = WatchEvent(EventType.ADDED, Key(scheme.WORKLOAD_PRIORITY_CLASS, "", "later"), {}, None, 1)
    assert list(controller.keys_for(added, make.NOW)) == []
    assert list(controller.keys_for(added._replace(key=added.key._replace(name="never")), make.NOW)) != []


def test_job_waits_for_missing_pod_priority_class() -> None:
    stage = stage_with(job_with("later"))
    assert stage.workloads() == []
    stage.put(make.priority_class("later", 3))
    assert priority(stage) == (3, "PriorityClass", "later")


def test_changed_label_updates_priority_of_admitted_workload() -> None:
    stage = stage_with(make.workload_priority_class("low", 1), make.flavor(), job_with(**{LABEL: "high"}))
    workload = stage.only_workload()
    stage.put(lifecycle.reserve_quota(workload, make.admission(), make.NOW, admitted=True))
    stage.put(with_path(stage.get(scheme.JOB, "job"), ("metadata", "labels", LABEL), "low"))
    assert priority(stage) == (1, "WorkloadPriorityClass", "low")
    assert stage.events[-1].message == f"Updated workload priority class: team/{workload['metadata']['name']}"


def test_workload_with_quota_gets_no_new_priority_class() -> None:
    stage = stage_with(make.flavor(), job_with())
    workload = stage.only_workload()
    stage.put(lifecycle.reserve_quota(workload, make.admission(), make.NOW, admitted=True))
    stage.put(with_path(stage.get(scheme.JOB, "job"), ("metadata", "labels", LABEL), "high"))
    assert priority(stage) == (0, "", "")


def test_pod_priority_class_is_kept() -> None:
    stage = stage_with(job_with("pods"))
    stage.put(with_path(stage.get(scheme.JOB, "job"), ("metadata", "labels", LABEL), "high"))
    assert priority(stage) == (50, "PriorityClass", "pods")


def test_changed_label_waits_for_missing_priority_class() -> None:
    stage = stage_with(job_with())
    stage.put(with_path(stage.get(scheme.JOB, "job"), ("metadata", "labels", LABEL), "later"))
    assert priority(stage) == (0, "", "")
    assert stage.events[-1].message == 'WorkloadPriorityClass "later" not found'
    stage.put(make.workload_priority_class("later", 3))
    assert priority(stage) == (3, "WorkloadPriorityClass", "later")
