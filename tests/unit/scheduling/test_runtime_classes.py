"""The overhead of a RuntimeClass counts as quota of its pods."""

from typing import Any

import make
from admission_watch import AdmissionWatcher
from batchyard.api import scheme
from batchyard.api.meta import key_of, with_metadata, with_path
from batchyard.api.views.workload import workload_view
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.workload.adjustments import AdjustedViews
from stage import Stage
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


def test_pending_workload_is_retried_when_runtime_class_is_deleted() -> None:
    stage = open_stage(queue("cq", 2))
    stage.put(runtime_class("2"))
    stage.put(workload("a", pod_sets=[pods()]))
    pass_time(stage, 3)
    assert state(stage, "a") == "pending"
    stage.delete(scheme.RUNTIME_CLASS, "kata", "")
    pass_time(stage, 6)
    assert state(stage, "a") == "admitted"


def test_runtime_class_with_unchanged_overhead_causes_no_retry() -> None:
    watcher = AdmissionWatcher()
    assert watcher.put(runtime_class("1"))
    watcher.index.resync(Stage().client, watcher.now)
    assert not watcher.put(with_path(runtime_class("1"), ("metadata", "labels"), {"x": "y"}))
    assert watcher.put(runtime_class("2"))


def test_cache_of_adjusted_views_is_bounded() -> None:
    views = AdjustedViews(workload_view)
    class_object = runtime_class("1")
    views.observe_runtime_class(WatchEvent(EventType.ADDED, key_of(class_object), class_object, None, 1))
    template = workload("a", pod_sets=[pods()])
    for number in range(16385):
        view = views.view(with_metadata(template, uid=f"uid-{number}"))
    assert view.pod_sets[0].template.requests == (("cpu", 2000),)
    assert len(views._view_cache) <= 16384
