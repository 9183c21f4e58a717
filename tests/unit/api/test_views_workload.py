"""The view of a Workload: what it asks for, what it holds, where in its life it stands."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Obj, with_metadata, with_path
from batchyard.api.views.workload import WorkloadView, workload_view


def view(**fields: Any) -> WorkloadView:
    return workload_view(make.workload(**fields))


def view_of(name: str, **fields: Any) -> WorkloadView:
    return workload_view(make.workload(name, **fields))


def test_a_view_is_made_once_for_an_object() -> None:
    obj = make.workload()
    assert workload_view(obj) is workload_view(obj)
    assert workload_view(dict(obj)) is not workload_view(obj)


def test_a_fresh_workload_asks_for_what_its_spec_says() -> None:
    found = view(queue="q", priority=7, pod_sets=[make.pod_set("a", 2, minCount=1), make.pod_set("b")])
    assert (found.key, found.queue, found.priority, found.uid) == ("team/wl", "team/q", 7, "uid-wl")
    assert [(p.name, p.count, p.min_count, p.group) for p in found.pod_sets] == [
        ("a", 2, 1, None),
        ("b", 1, None, None),
    ]
    assert (found.counts, found.created, found.queued) == ((2, 1), make.NOW, make.NOW)
    assert (found.active, found.admissible, found.finished, found.quota_reserved) == (True, True, False, False)


def test_what_is_missing_has_a_default() -> None:
    found = workload_view({"metadata": {"name": "x"}, "spec": {}})
    assert (found.key, found.queue, found.priority, found.created, found.pod_sets) == ("/x", "/", 0, 0, ())
    assert (found.uid, found.job_uid, found.generation) == ("", "", 0)


def test_the_job_behind_it_is_known_by_label() -> None:
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
def test_who_may_stand_in_a_queue(fields: dict[str, Any], *, admissible: bool) -> None:
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
def test_some_evictions_renew_the_turn(reason: str, *, status: bool, queued: int) -> None:
    assert view(conditions=[make.condition("Evicted", status, reason=reason, since=9)]).queued == make.at(queued)


def test_requeueing_may_have_to_wait() -> None:
    assert view(conditions=[make.condition("Requeued", status=False)]).requeue_blocked
    assert not view(conditions=[make.condition("Requeued")]).requeue_blocked
    found = view(status={"requeueState": {"count": 1, "requeueAt": make.stamp(7)}})
    assert (found.requeue_at, view(status={"requeueState": {"count": 1}}).requeue_at) == (make.at(7), None)


@pytest.mark.parametrize(("back", "left"), [(1, 3), (4, 0), (9, 0)])
def test_reclaimable_pods_are_no_longer_counted(back: int, left: int) -> None:
    found = view(pod_sets=[make.pod_set(count=4)], status={"reclaimablePods": [{"name": "main", "count": back}]})
    assert found.counts == (left,)


def holding(count: int, cpu: str, back: int = 0, total: int = 4) -> WorkloadView:
    """A Workload of some pods that holds quota for some of them."""
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
def test_what_is_held_shrinks_with_its_pods(found: WorkloadView, pods: int, cpu: int) -> None:
    (held,) = found.holdings
    assert (held.pods, dict(held.usage), dict(held.flavors)) == (pods, {"cpu": cpu}, {"cpu": "spot"})
    assert (found.cluster_queue, found.reserved_at, found.admitted) == ("cq", make.at(3), True)


def test_an_assignment_without_a_count_is_for_all_pods() -> None:
    admission = {"clusterQueue": "cq", "podSetAssignments": [{"name": "main"}]}
    (held,) = view(pod_sets=[make.pod_set(count=3)], status={"admission": admission}).holdings
    assert (held.pods, held.usage, held.flavors) == (3, (), {})
    assert view(status={"admission": {"clusterQueue": "cq"}}).holdings == ()


@pytest.mark.parametrize(
    ("pod_sets", "expected"),
    [
        ([make.pod_set()], False),
        ([make.pod_set(count=2, minCount=2)], False),
        ([make.pod_set(), make.pod_set("b", 3, minCount=2)], True),
    ],
)
def test_some_may_run_with_fewer_pods(pod_sets: list[Obj], *, expected: bool) -> None:
    assert view(pod_sets=pod_sets).can_be_partially_admitted is expected


def template(**spec: Any) -> list[Obj]:
    return [{"name": "main", "count": 1, "template": make.pod_template(**spec)}]


def with_container(**fields: Any) -> list[Obj]:
    (one,) = template()
    return [with_path(one, ("template", "spec", "containers"), [{"name": "c", "image": "i", **fields}])]


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        pytest.param(template(requests={"cpu": "1000m"}), True, id="the same amount in other words"),
        pytest.param(with_container(resources={"requests": {"cpu": "1"}}, image="other"), True, id="another image"),
        pytest.param(with_container(resources={"limits": {"cpu": "1"}}), True, id="a limit as request"),
        pytest.param(template(requests={"cpu": "2"}), False, id="another amount"),
        pytest.param(template(nodeSelector={"a": "b"}), False, id="a node selector"),
        pytest.param(template(tolerations=[{"operator": "Exists"}]), False, id="tolerations"),
        pytest.param(template(overhead={"cpu": "1"}), False, id="overhead"),
        pytest.param(template(runtimeClassName="x"), False, id="a runtime class"),
    ],
)
def test_equal_shapes_are_decided_alike(changed: list[Obj], *, same: bool) -> None:
    plain = view(pod_sets=template()).shape
    assert (view_of("other", pod_sets=changed).shape == plain) is same


def test_pod_sets_of_equal_content_share_their_view() -> None:
    assert view_of("a").pod_sets is view_of("b").pod_sets
