"""Why a Workload waits, in every state: its quota holders, its preemptors, and the names hidden from a user."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import make
import yard
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import SECOND
from batchyard.controller_runtime.events import EventRecorder
from batchyard.interfaces.controller import EventRecord
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.world import World

QUEUE = yard.queue("cq", 4)
LOCAL = make.local_queue()
FLAVOR = make.flavor("spot")


def user_object(obj: Obj) -> dict[str, Any]:
    """An object as a user writes it."""
    kept = {key: value for key, value in obj.items() if key != "status"}
    metadata = {key: value for key, value in obj["metadata"].items() if key not in {"uid", "creationTimestamp"}}
    return {**kept, "metadata": metadata}


def submitted_at(obj: Obj, moment: str) -> dict[str, Any]:
    """An object that is submitted at an instant."""
    annotations = {**(obj["metadata"].get("annotations") or {}), "batchyard.dev/submit-at": moment}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def world(*objects: Obj, fair_sharing: bool = False, until: int = 60) -> World:
    """A world without nodes, some time after the objects were submitted."""
    created = World(scenario_of([user_object(obj) for obj in objects], fair_sharing=fair_sharing))
    created.run_until(until * SECOND)
    created.flush_batched_writes()
    return created


def explanation_of(
    of: World, name: str = "wl", kind: str = scheme.WORKLOAD, namespace: str = "team"
) -> Mapping[str, Any]:
    """The document about an object."""
    result = of.platform.explainer.why(Key(kind, namespace, name), of.kernel.now())
    assert result is not None
    return result


def limit(of: World, name: str = "wl") -> tuple[str, str]:
    """The binding limit and its object."""
    binding = explanation_of(of, name)["binding"]
    return binding["limit"], f"{binding['where']['kind']} {binding['where']['name']}"


def workload(name: str = "wl", cpu: Any = 2, **fields: Any) -> Obj:
    return yard.workload(name, cpu, queue="lq", **fields)


OUT_OF_CYCLE = yard.cohort("root", parent="leaf"), yard.cohort("leaf", parent="root")
GATED = {"annotations": {"kueue.x-k8s.io/admission-gated-by": "example.com/gate"}}
OVER = make.pod_set(requests={"cpu": "2"})
OVER["template"]["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "1"}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ([FLAVOR, QUEUE], ("misconfigured", "LocalQueue lq")),
        ([FLAVOR, LOCAL], ("misconfigured", "ClusterQueue cq")),
        ([FLAVOR, QUEUE, make.local_queue(stopPolicy="Hold")], ("stopped", "LocalQueue lq")),
        ([FLAVOR, LOCAL, yard.queue("cq", 4, stopPolicy="Hold")], ("stopped", "ClusterQueue cq")),
        ([LOCAL, QUEUE], ("stopped", "ClusterQueue cq")),
        ([FLAVOR, LOCAL, yard.queue("cq", 4, namespaceSelector=None)], ("misconfigured", "ClusterQueue cq")),
        ([FLAVOR, LOCAL, yard.queue("cq", 4, cohort="leaf"), *OUT_OF_CYCLE], ("misconfigured", "Cohort leaf")),
    ],
    ids=["no LocalQueue", "no ClusterQueue", "LocalQueue held", "queue held", "no flavor", "no namespace", "cycle"],
)
def test_inactive_queue_or_invalid_setup_is_reported_first(objects: Sequence[Obj], expected: tuple[str, str]) -> None:
    assert limit(world(*objects, workload())) == expected


@pytest.mark.parametrize(
    ("objects", "change"),
    [
        ([LOCAL, yard.queue("cq", 4, stopPolicy="Hold")], "ClusterQueue cq: set stopPolicy to None"),
        ([make.local_queue(stopPolicy="Hold"), QUEUE], "LocalQueue lq: set stopPolicy to None"),
        (
            [LOCAL, yard.queue("cq", 4, namespaceSelector=None)],
            "ClusterQueue cq: make namespaceSelector select namespace team, for example with {}",
        ),
        (
            [LOCAL, yard.queue("cq", 1, stopPolicy="Hold")],
            (
                "ClusterQueue cq: set stopPolicy to None; "
                "ClusterQueue cq: raise nominalQuota of cpu in flavor spot from 1 to 2 (+1)"
            ),
        ),
    ],
    ids=["queue held", "LocalQueue held", "no namespace", "queue held without enough quota"],
)
def test_proposed_fix_admits_the_workload(objects: Sequence[Obj], change: str) -> None:
    changes = explanation_of(world(FLAVOR, *objects, workload())).get("changes", [])
    assert [each["text"] for each in changes] == [change]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"active": False}, ("stopped", "Workload wl")),
        (GATED, ("gated", "Workload wl")),
        ({"pod_sets": [OVER]}, ("misconfigured", "Workload wl")),
        ({"pod_sets": [make.pod_set(requests={"memory": "1Gi"})]}, ("misconfigured", "ClusterQueue cq")),
    ],
    ids=["deactivated", "gated", "above its limits", "not covered"],
)
def test_state_and_requests_of_workload_are_reported(fields: Mapping[str, Any], expected: tuple[str, str]) -> None:
    assert limit(world(FLAVOR, QUEUE, LOCAL, workload(**fields))) == expected


def test_limit_range_violation_is_reported() -> None:
    bounds = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small", "namespace": "team"}}
    most = {**bounds, "spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}}
    result = explanation_of(world(FLAVOR, QUEUE, LOCAL, most, workload()))
    assert result["binding"]["limit"] == "misconfigured"
    assert "requests must not be above the limitRange max" in result["summary"]


def test_all_flavors_are_reported_with_every_quota_level() -> None:
    quotas = yard.group(spot={"cpu": yard.quota(1, borrowing=1)}, tainted={"cpu": 9}, other={"cpu": 1})
    tainted = make.flavor("tainted", nodeTaints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    tree = [yard.cohort("leaf", parent="root"), yard.cohort("root", groups=[yard.group(spot={"cpu": 2})])]
    queue = yard.queue("cq", cohort="leaf", groups=[quotas])
    (reported,) = explanation_of(world(FLAVOR, tainted, make.flavor("other"), queue, *tree, LOCAL, workload(cpu=5)))[
        "podSets"
    ]
    verdicts = {each["flavor"]: each["verdict"] for each in reported["flavors"]}
    assert verdicts == {"spot": "exceedsMaximum", "tainted": "taint", "other": "exceedsMaximum"}
    levels = reported["flavors"][0]["resources"][0]["levels"]
    assert [(each["kind"], each["name"], each["nominal"], each["available"]) for each in levels] == [
        ("ClusterQueue", "cq", "1", "2"),
        ("Cohort", "leaf", "0", "3"),
        ("Cohort", "root", "2", "3"),
    ]
    assert levels[0]["borrowingLimit"] == "1"


def test_holders_list_borrowers_first() -> None:
    queues = [
        yard.queue("cq", 4, cohort="c", preemption=yard.preemption(reclaim="LowerPriority")),
        yard.queue("b", 0, cohort="c"),
    ]
    lender = make.local_queue("b", cluster_queue="b")
    borrower = yard.workload("taker", 3, queue="b", priority=5)
    result = explanation_of(world(FLAVOR, *queues, LOCAL, lender, borrower, submitted_at(workload(cpu=3), "1s")))
    (holder,) = result["holders"]
    assert (holder["workload"], holder["clusterQueue"], holder["borrows"]) == ("team/taker", "b", True)
    assert holder["stays"] == "its priority 5 is not lower than 0"
    assert result["binding"]["limit"] == "priority"
    assert "raise its priority from 0 to 6" in [change["text"] for change in result["changes"]]


def test_preemptor_waits_for_termination_of_its_victims() -> None:
    queue = yard.queue("cq", 4, preemption=yard.preemption(within="LowerPriority"))
    job = make.job("low", completions=4, parallelism=4)
    result = world(FLAVOR, queue, LOCAL, job, submitted_at(workload(cpu=4, priority=9), "30s"), until=30)
    assert explanation_of(result)["state"] in {"Running", "Admitted"}
    evicted = explanation_of(result, "low", scheme.JOB)
    assert (evicted["state"], evicted["preemption"]["by"]) == ("Evicted", "team/wl")
    assert evicted["preemption"]["rule"] == "InClusterQueue"


def test_preempted_workload_lists_alternatives_not_preempted() -> None:
    queue = yard.queue("cq", 4, preemption=yard.preemption(within="LowerPriority"))
    holders = [workload("first", priority=1), submitted_at(workload("second", priority=0), "1s")]
    result = world(FLAVOR, queue, LOCAL, *holders, submitted_at(workload("urgent", priority=9), "30s"))
    reported = explanation_of(result, "second")["preemption"]
    assert reported["alternatives"] == ["team/first was not preempted: its priority 1 is higher"]


def test_names_of_unreadable_workloads_are_hidden() -> None:
    elsewhere = {**workload("secret", cpu=4), "metadata": {**make.metadata("secret", "other")}}
    locals_ = [LOCAL, {**make.local_queue(), "metadata": make.metadata("lq", "other")}]
    result = world(FLAVOR, QUEUE, *locals_, elsewhere, submitted_at(workload(), "1s"))
    key, now = Key(scheme.WORKLOAD, "team", "wl"), result.kernel.now()
    hidden = result.platform.explainer.why(key, now, lambda namespace: namespace == "team")
    assert hidden is not None
    assert hidden["holders"][0]["workload"] == "a Workload of another namespace"
    assert "secret" not in str(hidden)
    assert [change["apply"] for change in hidden["changes"] if change["kind"] == "end"] == [[]]
    assert "other/secret" in str(explanation_of(result))


@pytest.mark.parametrize(
    ("job", "stated"),
    [
        (make.job(queue=None, suspend=False), "has no label kueue.x-k8s.io/queue-name"),
        (
            make.job(queue=None, suspend=False, annotations={"kueue.x-k8s.io/queue-name": "lq"}),
            "lq is set as an annotation and must be a label",
        ),
        (make.job(labels={"kueue.x-k8s.io/priority-class": "urgent"}), "WorkloadPriorityClass urgent does not exist"),
        (make.job(template=make.pod_template(priorityClassName="high")), "PriorityClass high does not exist"),
    ],
)
def test_job_without_queue_is_reported_as_unmanaged(job: Obj, stated: str) -> None:
    result = explanation_of(world(FLAVOR, QUEUE, LOCAL, job), "job", scheme.JOB)
    assert (result["state"], stated in result["summary"]) == ("Unmanaged", True)


def test_job_and_its_pods_refer_to_same_workload() -> None:
    result = world(FLAVOR, QUEUE, LOCAL, make.job(annotations={"batchyard.dev/runtime": "1h"}))
    pod = result.objects(scheme.POD)[0]["metadata"]["name"]
    job, of_pod = explanation_of(result, "job", scheme.JOB), explanation_of(result, pod, scheme.POD)
    assert job["state"] == of_pod["state"] == "Running"
    assert (
        job["facts"]["workload"]
        == of_pod["facts"]["workload"]
        == result.objects(scheme.WORKLOAD)[0]["metadata"]["name"]
    )
    assert of_pod["pod"]["phase"] == "Running"


def test_running_workload_reports_possible_preemptors() -> None:
    queue = yard.queue("cq", 4, preemption=yard.preemption(within="LowerPriority"))
    assert (
        explanation_of(world(FLAVOR, queue, LOCAL, workload()))["facts"]["preemptible"]
        == "in cq by Workloads of priority above 0"
    )


def test_queue_reports_head_and_lent_quota() -> None:
    queues = [yard.queue("cq", 4, cohort="c"), yard.queue("b", 0, cohort="c")]
    borrower = yard.workload("taker", 3, queue="b")
    result = world(
        FLAVOR, *queues, LOCAL, make.local_queue("b", cluster_queue="b"), borrower, submitted_at(workload(), "1s")
    )
    reported = explanation_of(result, "cq", scheme.CLUSTER_QUEUE, "")
    assert (reported["state"], reported["binding"]["limit"]) == ("Active", "nominal")
    assert "the first is team/wl" in reported["summary"]
    assert reported["quotas"][0]["lent"] == "3"
    assert explanation_of(result, "b", scheme.CLUSTER_QUEUE, "")["quotas"][0]["borrowed"] == "3"


def test_fair_shares_are_reported_with_fair_sharing() -> None:
    queues = [yard.queue(name, 2, cohort="c", weight=1) for name in ("cq", "b")]
    taker = yard.workload("taker", 3, queue="b")
    locals_ = [LOCAL, make.local_queue("b", cluster_queue="b")]
    result = explanation_of(world(FLAVOR, *queues, *locals_, taker, submitted_at(workload(), "1s"), fair_sharing=True))
    assert {each["clusterQueue"]: each.get("share", 0) for each in result["shares"]} == {"cq": 0, "b": 250}


def test_why_returns_none_for_missing_object() -> None:
    result = world(FLAVOR, QUEUE)
    assert result.platform.explainer.why(Key(scheme.WORKLOAD, "team", "none"), result.kernel.now()) is None


def test_why_does_not_change_world() -> None:
    objects = [
        FLAVOR,
        QUEUE,
        LOCAL,
        workload("first", cpu=3),
        submitted_at(workload(), "1s"),
        submitted_at(workload("third"), "2s"),
    ]
    request, left = world(*objects), world(*objects)
    for _ in range(3):
        explanation_of(request)
    for each in (request, left):
        each.run_until(120 * SECOND)
        each.flush_batched_writes()
    assert request.objects(scheme.WORKLOAD) == left.objects(scheme.WORKLOAD)
    assert (
        request.platform.index.snapshot.queues["cq"].node.usage == left.platform.index.snapshot.queues["cq"].node.usage
    )


def test_repeatedly_rejected_write_is_reported() -> None:
    created = world(QUEUE, LOCAL, FLAVOR, workload())
    obj = created.client.get(Key(scheme.WORKLOAD, "team", "wl"))
    assert obj is not None
    recorder = EventRecorder(created.client, "host")
    record = EventRecord(Key(scheme.WORKLOAD, "team", "wl"), "Warning", "WriteRefused", "UpdateStatus: not allowed")
    recorder(created.kernel.now(), "workload", record)
    created.flush_batched_writes()
    assert explanation_of(created)["facts"]["refused"] == "UpdateStatus: not allowed (0s ago)"
    later = created.platform.explainer.why(Key(scheme.WORKLOAD, "team", "wl"), created.kernel.now() + 300 * SECOND)
    assert later is not None
    assert "refused" not in later["facts"]
