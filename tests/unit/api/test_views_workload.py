"""The view of a Workload: its requests, its reserved quota and its state."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Obj, with_metadata, with_path
from batchyard.api.views.workload import FINISHED_VIEWS_MAX, WorkloadView, workload_view


def view(**fields: Any) -> WorkloadView:
    return workload_view(make.workload(**fields))


def view_of(name: str, **fields: Any) -> WorkloadView:
    return workload_view(make.workload(name, **fields))


def test_workload_view_is_cached_per_object() -> None:
    obj = make.workload()
    assert workload_view(obj) is workload_view(obj)
    assert workload_view(dict(obj)) is not workload_view(obj)


def test_view_of_new_workload_reads_spec() -> None:
    result = view(queue="q", priority=7, pod_sets=[make.pod_set("a", 2, minCount=1), make.pod_set("b")])
    assert (result.key, result.queue, result.priority, result.uid) == ("team/wl", "team/q", 7, "uid-wl")
    assert [(p.name, p.count, p.min_count, p.group) for p in result.pod_sets] == [
        ("a", 2, 1, None),
        ("b", 1, None, None),
    ]
    assert (result.counts, result.created, result.queued) == ((2, 1), make.NOW, make.NOW)
    assert (result.active, result.admissible, result.finished, result.quota_reserved) == (True, True, False, False)


def test_workload_view_has_defaults_for_missing_fields() -> None:
    result = workload_view({"metadata": {"name": "x"}, "spec": {}})
    assert (result.key, result.queue, result.priority, result.created, result.pod_sets) == ("/x", "/", 0, 0, ())
    assert (result.uid, result.job_uid, result.generation) == ("", "", 0)


def test_job_uid_is_read_from_label() -> None:
    obj = with_metadata(make.workload(), labels={"kueue.x-k8s.io/job-uid": "u"})
    assert workload_view(obj).job_uid == "u"


@pytest.mark.parametrize(
    ("fields", "admissible"),
    [
        ({}, True),
        ({"active": False}, False),
        ({"active": None}, True),
        ({"conditions": [make.condition("Finished")]}, False),
        ({"conditions": [make.condition("Finished", status=False)]}, True),
        ({"conditions": [make.condition("QuotaReserved")]}, False),
        ({"conditions": [make.condition("QuotaReserved", status=False, reason="OnHold")]}, False),
        ({"conditions": [make.condition("QuotaReserved", status=False, reason="WaitingForQuota")]}, True),
        ({"conditions": [make.condition("WaitingForReplacementPods")]}, False),
        ({"annotations": {"kueue.x-k8s.io/admission-gated-by": "x"}}, False),
        ({"annotations": {"kueue.x-k8s.io/admission-gated-by": ""}}, True),
    ],
)
def test_workload_admissibility_depends_on_conditions_and_gates(fields: dict[str, Any], *, admissible: bool) -> None:
    assert view(**fields).admissible is admissible


@pytest.mark.parametrize(
    ("reason", "status", "queued"),
    [
        ("PodsReadyTimeout", True, 9),
        ("AdmissionCheck", True, 9),
        ("Preempted", True, 0),
        ("PodsReadyTimeout", False, 0),
    ],
)
def test_queue_time_follows_eviction_reason(reason: str, *, status: bool, queued: int) -> None:
    assert view(conditions=[make.condition("Evicted", status, reason=reason, since=9)]).queued == make.at(queued)


def test_requeue_block_and_time_are_read_from_status() -> None:
    assert view(conditions=[make.condition("Requeued", status=False)]).requeue_blocked
    assert not view(conditions=[make.condition("Requeued")]).requeue_blocked
    result = view(status={"requeueState": {"count": 1, "requeueAt": make.stamp(7)}})
    assert (result.requeue_at, view(status={"requeueState": {"count": 1}}).requeue_at) == (make.at(7), None)


@pytest.mark.parametrize(("back", "left"), [(1, 3), (4, 0), (9, 0)])
def test_reclaimable_pods_reduce_pod_count(back: int, left: int) -> None:
    result = view(pod_sets=[make.pod_set(count=4)], status={"reclaimablePods": [{"name": "main", "count": back}]})
    assert result.counts == (left,)


def holding(count: int, cpu: str, back: int = 0, total: int = 4) -> WorkloadView:
    """Return a Workload that holds quota for `count` of its `total` Pods."""
    assignment = {"name": "main", "count": count, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": cpu}}
    status = {
        "admission": {"clusterQueue": "cq", "podSetAssignments": [assignment]},
        "reclaimablePods": [{"name": "main", "count": back}] if back else [],
    }
    conditions = [make.condition("QuotaReserved", since=3), make.condition("Admitted")]
    return view(pod_sets=[make.pod_set(count=total)], conditions=conditions, status=status)


@pytest.mark.parametrize(
    ("found", "pods", "cpu"),
    [
        pytest.param(holding(4, "8"), 4, 8000, id="all pods"),
        pytest.param(holding(3, "6"), 3, 6000, id="a partial admission"),
        pytest.param(holding(4, "8", back=1), 3, 6000, id="pods that are done"),
        pytest.param(holding(3, "6", back=1), 3, 6000, id="fewer pods than are left"),
        pytest.param(holding(3, "6", back=3), 1, 2000, id="a partial admission with pods that are done"),
    ],
)
def test_reserved_usage_shrinks_with_reclaimable_pods(found: WorkloadView, pods: int, cpu: int) -> None:
    (held,) = found.admitted_pod_sets
    assert (held.pods, dict(held.usage), dict(held.flavors)) == (pods, {"cpu": cpu}, {"cpu": "spot"})
    assert (found.cluster_queue, found.reserved_at, found.admitted) == ("cq", make.at(3), True)


def test_assignment_without_count_covers_all_pods() -> None:
    admission = {"clusterQueue": "cq", "podSetAssignments": [{"name": "main"}]}
    (held,) = view(pod_sets=[make.pod_set(count=3)], status={"admission": admission}).admitted_pod_sets
    assert (held.pods, held.usage, held.flavors) == (3, (), {})
    assert view(status={"admission": {"clusterQueue": "cq"}}).admitted_pod_sets == ()


@pytest.mark.parametrize(
    ("pod_sets", "expected"),
    [
        ([make.pod_set()], False),
        ([make.pod_set(count=2, minCount=2)], False),
        ([make.pod_set(), make.pod_set("b", 3, minCount=2)], True),
    ],
)
def test_partial_admission_requires_smaller_min_count(pod_sets: list[Obj], *, expected: bool) -> None:
    assert view(pod_sets=pod_sets).can_be_partially_admitted is expected


def template(**spec: Any) -> list[Obj]:
    return [{"name": "main", "count": 1, "template": make.pod_template(**spec)}]


def with_container(**fields: Any) -> list[Obj]:
    (one,) = template()
    return [with_path(one, ("template", "spec", "containers"), [{"name": "c", "image": "i", **fields}])]


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        pytest.param(template(requests={"cpu": "1000m"}), True, id="equal amount in other notation"),
        pytest.param(with_container(resources={"requests": {"cpu": "1"}}, image="other"), True, id="another image"),
        pytest.param(with_container(resources={"limits": {"cpu": "1"}}), True, id="a limit as request"),
        pytest.param(template(requests={"cpu": "2"}), False, id="another amount"),
        pytest.param(template(nodeSelector={"a": "b"}), False, id="a node selector"),
        pytest.param(template(tolerations=[{"operator": "Exists"}]), False, id="tolerations"),
        pytest.param(template(overhead={"cpu": "1"}), False, id="overhead"),
        pytest.param(template(runtimeClassName="x"), False, id="a runtime class"),
    ],
)
def test_workload_shape_depends_on_scheduling_fields_only(changed: list[Obj], *, same: bool) -> None:
    plain = view(pod_sets=template()).shape
    assert (view_of("other", pod_sets=changed).shape == plain) is same


def test_equal_pod_sets_share_view() -> None:
    assert view_of("a").pod_sets is view_of("b").pod_sets


def test_views_of_finished_workloads_are_dropped_when_many_finished() -> None:
    pending, finished = make.workload("pending"), make.workload("finished", conditions=[make.condition("Finished")])
    pending_view, finished_view = workload_view(pending), workload_view(finished)
    for number in range(FINISHED_VIEWS_MAX):
        workload_view(with_metadata(finished, name=f"wl-{number}", uid=f"uid-{number}"))
    assert workload_view(pending) is pending_view
    assert workload_view(finished) is not finished_view
