"""Replacement of failed nodes in topology assignments, in whole runs."""

from collections.abc import Mapping
from typing import Any

import make
import yard
from batchyard import simulate
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_metadata, with_path
from batchyard.api.views.topology import (
    TopologyAssignment,
    TopologyDomain,
    format_topology_assignment,
    parse_topology_assignment,
)
from batchyard.interfaces.controller import EventRecord
from batchyard.scheduling.controller import Scheduler, SchedulerSettings
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.scheduling.workload.node_failures import NodeFailures
from batchyard.sim.event_log import Event, Evicted, OtherEvent, QuotaReserved, Reassigned
from stage import Stage, condition_state

HOSTNAME = "kubernetes.io/hostname"
NO_GATES: Mapping[str, bool] = {}
TERMINATION_OFF = {"TASReplaceNodeOnPodTermination": False}
POD_ANNOTATIONS = {"kueue.x-k8s.io/workload": "wl", "kueue.x-k8s.io/podset-required-topology": "rack"}
SCENARIO = {
    "apiVersion": "sim.batchyard.dev/v1alpha1",
    "kind": "Scenario",
    "metadata": {"name": "nodes"},
    "spec": {"horizon": "1m"},
}


def node(name: str, at: int = 0, *, ready: bool = True, gone_at: int = 0, **spec: Any) -> Obj:
    """A Node document of a rack with room for two pods; from `at` seconds on."""
    rack, times = f"r{name[1]}", {"batchyard.dev/submit-at": f"{at}s"}
    if gone_at:
        times["batchyard.dev/delete-at"] = f"{gone_at}s"
    labels = {"rack": rack, HOSTNAME: name, "pool": "tas"}
    status = {"allocatable": {"cpu": "2", "pods": "9"}, "conditions": [{"type": "Ready", "status": str(ready)}]}
    metadata = {"name": name, "labels": labels, "annotations": times}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def workload(count: int, name: str = "wl", queue: str = "lq", at: int = 5, runtime: str = "1h", **request: Any) -> Obj:
    """A Workload of one-cpu pods."""
    pod_set = make.pod_set("main", count, requests={"cpu": "1"}, topologyRequest=request)
    notes = {"batchyard.dev/submit-at": f"{at}s", "batchyard.dev/runtime": runtime}
    metadata = {"name": name, "namespace": "team", "annotations": notes}
    spec = {"queueName": queue, "podSets": [pod_set]}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata, "spec": spec}


def run(*objects: Obj) -> list[str]:
    """The reservations, reassignments and evictions of a run: `5 QuotaReserved h1:2`."""
    topology = make.topology()
    topology["spec"]["levels"].append({"nodeLabel": HOSTNAME})
    quota = {"name": "tas", "resources": [{"name": "cpu", "nominalQuota": "99"}]}
    queue = make.cluster_queue(active=None, resourceGroups=[{"coveredResources": ["cpu"], "flavors": [quota]}])
    queue["spec"].setdefault("namespaceSelector", {})
    flavor = make.flavor("tas", labels={"pool": "tas"}, topologyName="racks")
    events: list[Event] = []
    setting = [topology, flavor, queue, make.local_queue(), make.namespace()]
    simulate(
        SCENARIO,
        *[{k: v for k, v in each.items() if k != "status"} for each in setting],
        *objects,
        events=events.append,
    )
    return [text for event in events if (text := describe(event))]


def describe(event: Event) -> str:
    """A reservation, reassignment or eviction as a short text; '' for other events."""
    match event:
        case QuotaReserved() | Reassigned():
            (pod_set,) = event.pod_sets
            assert pod_set.topology is not None
            domains = pod_set.topology["domains"]
            hosts = " ".join(f"{domain['values'][-1]}:{domain['count']}" for domain in domains)
            return f"{event.time:g} {type(event).__name__} {hosts}"
        case Evicted():
            return f"{event.time:g} {event.reason}"
        case OtherEvent(record={"event": "PodBound", "pod": str(pod), "node": host}) if pod.startswith("team/"):
            return f"{event.time:g} PodBound {pod.removeprefix('team/').rpartition('-')[0]} {host}"
        case _:
            return ""


def job(count: int, at: int = 5, runtime: str = "20s", **annotations: str) -> Obj:
    """An indexed Job of one-cpu pods that requires one rack."""
    notes = {"batchyard.dev/submit-at": f"{at}s", "batchyard.dev/runtime": runtime, **annotations}
    template = make.pod_template()
    template["metadata"] = {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}}
    spec = {"parallelism": count, "completions": count, "completionMode": "Indexed", "template": template}
    metadata = {"name": "j", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "lq"}, "annotations": notes}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"suspend": True, **spec}}


def test_pods_run_on_the_nodes_of_their_rank_and_follow_a_replacement() -> None:
    nodes = [node("n1a"), node("n1b", gone_at=12), node("n1c")]
    assert run(*nodes, job(3)) == [
        "5 QuotaReserved n1a:2 n1b:1",
        "5 PodBound j-0 n1a",
        "5 PodBound j-1 n1a",
        "5 PodBound j-2 n1b",
        "13 Reassigned n1a:2 n1c:1",
        "15 PodBound j-2 n1c",
    ]


def test_deleted_node_is_replaced_a_second_later() -> None:
    assert run(node("n1a", gone_at=10), node("n1b"), node("n1c"), workload(3, required="rack")) == [
        "5 QuotaReserved n1a:2 n1b:1",
        "11 Reassigned n1b:1 n1c:2",
    ]


def test_unready_node_is_replaced() -> None:
    nodes = [node("n1a"), node("n1b"), node("n1a", 10, ready=False)]
    assert run(*nodes, workload(2, required="rack")) == ["5 QuotaReserved n1a:2", "11 Reassigned n1b:2"]


def test_untolerated_taint_is_a_failure_but_a_cordon_is_not() -> None:
    taint = {"key": "gone", "effect": "NoSchedule"}
    pods = workload(2, required="rack")
    assert run(node("n1a"), node("n1b"), node("n1a", 10, taints=[taint]), pods) == [
        "5 QuotaReserved n1a:2",
        "11 Reassigned n1b:2",
    ]
    assert run(node("n1a"), node("n1b"), node("n1a", 10, unschedulable=True), pods) == ["5 QuotaReserved n1a:2"]


def test_workload_is_evicted_if_no_node_can_replace() -> None:
    assert run(node("n1a", gone_at=10), node("n1b"), node("n2a", gone_at=9), workload(4, preferred="rack")) == [
        "5 QuotaReserved n1a:2 n1b:2",
        "11 NodeFailures",
    ]


def test_second_failure_before_the_replacement_evicts() -> None:
    nodes = [node("n1a", gone_at=10), node("n1b", gone_at=10), node("n1c"), node("n1d")]
    assert run(*nodes, workload(4, required="rack")) == [
        "5 QuotaReserved n1a:2 n1b:2",
        "10 NodeFailures",
        "10 QuotaReserved n1c:2 n1d:2",
    ]


def test_waiting_workload_is_tried_again_when_a_node_is_added() -> None:
    assert run(node("n1a"), node("n1b", 20), workload(4, required="rack")) == ["20 QuotaReserved n1a:2 n1b:2"]


def test_blocked_head_is_tried_when_another_tree_frees_a_node() -> None:
    quota = {"name": "tas", "resources": [{"name": "cpu", "nominalQuota": "99"}]}
    groups = [{"coveredResources": ["cpu"], "flavors": [quota]}]
    strict = make.cluster_queue(
        "strict", active=None, queueingStrategy="StrictFIFO", namespaceSelector={}, resourceGroups=groups
    )
    other = [
        {k: v for k, v in each.items() if k != "status"}
        for each in (strict, make.local_queue("sq", cluster_queue="strict"))
    ]
    short = workload(2, runtime="20s", required="rack")
    blocked = workload(2, "blocked", queue="sq", at=8, required="rack")
    assert run(node("n1a"), *other, short, blocked) == ["5 QuotaReserved n1a:2", "25 QuotaReserved n1a:2"]


def test_static_pod_uses_capacity_until_it_is_deleted() -> None:
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1"}}}
    times = {"batchyard.dev/delete-at": "30s"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "static", "namespace": "kube-system", "annotations": times},
        "spec": {"nodeName": "n1a", "containers": [container]},
        "status": {"phase": "Running"},
    }
    assert run(node("n1a"), pod, workload(2, required="rack")) == ["30 QuotaReserved n1a:2"]


def stage_with_pod(gates: Mapping[str, bool] = NO_GATES, **spec: Any) -> Stage:
    """A Workload of a Job on nodes n1 and n2, and one of its pods, ungated for n1."""
    stage = Stage(NodeFailures(gates))
    domains = (TopologyDomain(("n1",), 1), TopologyDomain(("n2",), 1))
    admission = make.admission(main=2)
    assignment = format_topology_assignment(TopologyAssignment((HOSTNAME,), domains))
    admission["podSetAssignments"][0]["topologyAssignment"] = assignment
    conditions = [make.condition("QuotaReserved"), make.condition("Admitted")]
    metadata = make.metadata("p", annotations=POD_ANNOTATIONS)
    owned = make.workload(pod_sets=[make.pod_set("main", 2)], conditions=conditions, status={"admission": admission})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    owned["metadata"]["ownerReferences"] = [owner]
    pod_spec = {"nodeSelector": {HOSTNAME: "n1"}, "containers": [], **spec}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec, "status": {"phase": "Pending"}}
    stage.put(node("n1"), node("n2"), owned, pod)
    return stage


def phase(stage: Stage) -> str:
    """The phase of the pod, and the failed nodes of the Workload."""
    failed = [each["name"] for each in stage.workload()["status"].get("unhealthyNodes", ())]
    return " ".join([stage.get(scheme.POD, "p")["status"]["phase"], *failed])


def test_pod_that_waits_for_a_failed_node_fails() -> None:
    stage = stage_with_pod()
    assert phase(stage) == "Pending"
    stage.put(node("n1", ready=False))
    assert phase(stage) == "Failed n1"
    message = "Pod terminated by Kueue NodeController due to node taint"
    assert condition_state(stage.get(scheme.POD, "p"), "TerminatedByKueue") == (
        "True",
        "UnschedulableOnAssignedNode",
        message,
    )
    assert stage.events[-1] == EventRecord(Key(scheme.POD, "team", "p"), "Normal", "PodTerminatedByKueue", message)


def test_condition_of_an_ended_pod_has_no_observed_generation() -> None:
    stage = stage_with_pod()
    stage.put(with_path(stage.get(scheme.POD, "p"), ("metadata", "generation"), 1))
    stage.put(node("n1", ready=False))
    [condition] = stage.get(scheme.POD, "p")["status"]["conditions"]
    assert condition["type"] == "TerminatedByKueue"
    assert "observedGeneration" not in condition


def test_pod_without_topology_annotations_keeps_its_node() -> None:
    stage = stage_with_pod(nodeName="n2")
    metadata = make.metadata("q", annotations={"kueue.x-k8s.io/workload": "wl"})
    spec = {"nodeName": "n1", "containers": []}
    stage.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    stage.put(node("n1", taints=[{"key": "broken", "effect": "NoSchedule"}]))
    assert phase(stage) == "Pending"


def put_replaced_slice(stage: Stage) -> None:
    """Make the pod's Workload a finished slice on n2; its replacement has the nodes n1 and n2."""
    first_slice = {"kueue.x-k8s.io/workload-slice-name": "wl"}
    new = with_metadata(stage.workload(), name="new", uid="uid-new", annotations=first_slice, resourceVersion=None)
    old = with_path(stage.workload(), ("status", "conditions"), [make.condition("Finished")])
    pod = stage.get(scheme.POD, "p")
    annotations = {**pod["metadata"]["annotations"], **first_slice}
    stage.put(new, with_metadata(old, annotations=first_slice), with_metadata(pod, annotations=annotations))


def test_pod_of_an_elastic_job_is_judged_by_the_current_slice() -> None:
    stage = stage_with_pod()
    put_replaced_slice(stage)
    assert stage.get(scheme.POD, "p")["status"]["phase"] == "Pending"
    stage.put(node("n1", ready=False))
    assert stage.get(scheme.POD, "p")["status"]["phase"] == "Failed"


def test_late_pod_that_names_its_workload_as_a_slice_fails_on_a_node_that_was_replaced() -> None:
    stage = stage_with_pod()
    pod = stage.get(scheme.POD, "p")
    late = with_metadata(pod, name="late", annotations={**POD_ANNOTATIONS, "kueue.x-k8s.io/workload-slice-name": "wl"})
    stage.put(node("n3"), with_path(late, ("spec", "nodeSelector"), {HOSTNAME: "n3"}))
    assert phase(stage) == "Pending"
    assert stage.get(scheme.POD, "late")["status"]["phase"] == "Failed"


def test_failures_during_a_restart_are_noticed() -> None:
    stage = stage_with_pod(nodeName="n2")
    stage.replace_controllers()
    stage.put(node("n1", ready=False), node("n2", ready=False))
    stage.replace_controllers(NodeFailures())
    assert phase(stage) == "Pending n1"
    stage.replace_controllers()
    stage.delete(scheme.NODE, "n2", "")
    stage.put(node("n1"))
    stage.replace_controllers(NodeFailures())
    assert phase(stage) == "Pending n2"


def test_nothing_fails_while_no_node_is_known() -> None:
    stage = stage_with_pod()
    stage.replace_controllers()
    for name in ("n1", "n2"):
        stage.delete(scheme.NODE, name, "")
    stage.replace_controllers(NodeFailures())
    assert phase(stage) == "Pending"


def test_pod_that_waits_for_a_node_of_an_earlier_assignment_fails() -> None:
    stage = stage_with_pod(nodeSelector={HOSTNAME: "n3"})
    stage.put(node("n3"))
    assert phase(stage) == "Failed"


def test_gated_and_scheduled_pods_are_left_to_others() -> None:
    gate = {"name": "kueue.x-k8s.io/topology"}
    for spec in ({"schedulingGates": [gate]}, {"nodeName": "n1"}):
        stage = stage_with_pod(**spec)
        stage.put(node("n1", ready=False))
        assert phase(stage) == ("Pending" if "nodeName" in spec else "Pending n1")


def test_cordoned_node_of_a_job_fails_once_its_pods_are_gone() -> None:
    cordon = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    stage = stage_with_pod(nodeName="n1")
    stage.put(node("n1", unschedulable=True, taints=cordon))
    assert phase(stage) == "Pending"
    stage.put({**stage.get(scheme.POD, "p"), "status": {"phase": "Failed"}})
    assert phase(stage) == "Failed n1"


def test_pods_of_workloads_without_topology_may_wait_for_a_node() -> None:
    stage = Stage(NodeFailures())
    metadata = make.metadata("p", annotations={"kueue.x-k8s.io/workload": "wl"})
    spec = {"nodeSelector": {HOSTNAME: "n1"}, "containers": []}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
    stage.put(node("n1"), make.workload(conditions=[make.condition("Admitted")]), pod)
    stage.put(node("n1", ready=False))
    assert phase(stage) == "Pending"


PROVISIONING = "kueue.x-k8s.io/provisioning-request"


def delayed_stage(*, ready: bool, gates: Mapping[str, bool] = NO_GATES, **queue_fields: Any) -> Stage:
    """A Workload in a flavor for which machines are requested; its AdmissionCheck is ready, or pending."""
    cache = SchedulerCache()
    cache.snapshot.topology.enable(gates)
    scheduler = Scheduler(cache, SchedulingPolicy(), settings=SchedulerSettings(watches_nodes=True))
    stage = Stage(scheduler, WorkloadLifecycle(), NodeFailures())
    checks = {"admissionChecks": [{"name": "machines"}]}
    queue = make.cluster_queue(
        resourceGroups=[yard.group(tas={"cpu": 9})], admissionChecksStrategy=checks, **queue_fields
    )
    check = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": make.metadata("machines", None),
    }
    check |= {"spec": {"controllerName": PROVISIONING}, "status": {"conditions": [make.condition("Active")]}}
    topology = make.topology()
    topology["spec"]["levels"].append({"nodeLabel": HOSTNAME})
    flavor = make.flavor("tas", labels={"pool": "tas"}, topologyName="racks")
    pods = make.pod_set("main", 2, topologyRequest={"required": "rack"})
    stage.put(make.namespace(), topology, flavor, check, queue, make.local_queue(), make.workload(pod_sets=[pods]))
    if ready:
        finish_check(stage)
    return stage


def finish_check(stage: Stage, name: str = "wl") -> None:
    """Let the AdmissionCheck of the Workload be ready, with a node selector for its pods."""
    update = {"name": "main", "nodeSelector": {"machines": "new"}}
    state = {"name": "machines", "state": "Ready", "message": "", "lastTransitionTime": make.stamp()}
    stage.put(with_path(stage.workload(name), ("status", "admissionChecks"), [{**state, "podSetUpdates": [update]}]))


def assigned(stage: Stage, name: str = "wl") -> tuple[str, bool, list[str]]:
    """The state of the delayed request, whether the Workload is admitted, and its hosts."""
    held = stage.workload(name)["status"]["admission"]["podSetAssignments"][0]
    found = parse_topology_assignment(held.get("topologyAssignment") or {})
    is_admitted = condition_state(stage.workload(name), "Admitted")[0] == "True"
    return held["delayedTopologyRequest"], is_admitted, [domain.values[-1] for domain in found.domains]


def new_node(name: str) -> Obj:
    """A node that the pods select after the AdmissionCheck."""
    return with_path(node(name), ("metadata", "labels", "machines"), "new")


def test_domains_are_delayed_until_the_requested_machines_exist() -> None:
    stage = delayed_stage(ready=False)
    stage.put(new_node("n1a"))
    stage.run(5)
    assert assigned(stage) == ("Pending", False, [])
    finish_check(stage)
    assert condition_state(stage.workload(), "Admitted")[1] == "PendingDelayedTopologyRequests"
    stage.run(6)
    assert assigned(stage) == ("Ready", True, ["n1a"])


def test_delayed_search_is_repeated_with_backoff_on_nodes_that_the_check_selects() -> None:
    stage = delayed_stage(ready=True)
    stage.put(node("n1a"))
    stage.run(1)
    (failed,) = (event for event in stage.events if event.reason == "SecondPassFailed")
    assert failed.message.startswith("couldn't assign flavors to pod set main: topology \"racks\" doesn't allow to fit")
    stage.put(new_node("n1b"))
    stage.run(2.9)
    assert assigned(stage) == ("Pending", False, [])
    stage.run(3)
    assert assigned(stage) == ("Ready", True, ["n1b"])


def test_delayed_domains_are_freed_by_preemption_and_taken_at_the_next_try() -> None:
    stage = delayed_stage(ready=False, preemption=yard.preemption("LowerPriority"))
    request = {"topologyRequest": {"required": "rack"}}
    stage.put(new_node("n1a"), make.workload("low", pod_sets=[make.pod_set("main", 2, **request)], priority=-1))
    finish_check(stage, "low")
    stage.run(1)
    assert assigned(stage, "low") == ("Ready", True, ["n1a"])
    finish_check(stage)
    stage.run(2)
    (failed,) = (event for event in stage.events if event.reason == "SecondPassFailed")
    assert failed.message.endswith('excluded: resource "cpu": 1. Pending the preemption of 1 workload(s)')
    assert condition_state(stage.workload("low"), "Preempted")[:2] == ("True", "InClusterQueue")
    stage.delete(scheme.WORKLOAD, "low")
    stage.run(4)
    assert assigned(stage) == ("Ready", True, ["n1a"])


def test_delayed_search_ends_with_an_eviction() -> None:
    stage = delayed_stage(ready=True)
    stage.put(with_path(stage.workload(), ("spec", "active"), False))
    stage.put(new_node("n1a"))
    stage.run(60)
    assert assigned(stage) == ("Pending", False, [])
    assert "SecondPassFailed" not in stage.reasons()


def test_replacement_follows_the_selector_of_the_check() -> None:
    stage = delayed_stage(ready=True)
    stage.put(new_node("n1a"))
    stage.run(1)
    stage.put(node("n1b"), new_node("n1c"))
    stage.delete(scheme.NODE, "n1a", "")
    stage.run(3)
    assert assigned(stage) == ("Ready", True, ["n1c"])


def test_taint_that_a_check_tolerates_is_no_failure() -> None:
    stage = stage_with_pod()
    taint = {"key": "gone", "effect": "NoSchedule"}
    update = {"name": "main", "tolerations": [{"key": "gone", "operator": "Exists"}]}
    check = {"name": "machines", "state": "Ready", "podSetUpdates": [update]}
    stage.put(with_path(stage.workload(), ("status", "admissionChecks"), [check]))
    stage.put(node("n1", taints=[taint]))
    assert phase(stage) == "Pending"


# Feature gates of node failures.


def unready_node(name: str) -> Obj:
    """A node that has not been ready since ten seconds after the start."""
    return with_path(node(name), ("status", "conditions"), [make.condition("Ready", False, since=10)])


def test_taints_are_no_failures_without_their_gate() -> None:
    stage = stage_with_pod({"TASReplaceNodeOnNodeTaints": False})
    stage.put(node("n1", taints=[{"key": "gone", "effect": "NoExecute"}]))
    assert phase(stage) == "Pending"
    stage.put(node("n1", ready=False))
    assert phase(stage) == "Failed n1"


def test_unready_node_fails_after_a_delay_while_pods_run_on_it() -> None:
    for gates, failed in ((TERMINATION_OFF, " n1"), (NO_GATES, "")):
        stage = stage_with_pod(gates, nodeName="n1")
        stage.run(10)
        stage.put(unready_node("n1"))
        stage.run(39.9)
        assert phase(stage) == "Pending"
        stage.run(40)
        assert phase(stage) == f"Pending{failed}"


def test_node_that_recovers_before_the_delay_does_not_fail() -> None:
    stage = stage_with_pod(TERMINATION_OFF, nodeName="n1")
    stage.run(10)
    stage.put(unready_node("n1"))
    stage.run(30)
    stage.put(node("n1"))
    stage.run(60)
    assert phase(stage) == "Pending"


def test_waiting_pod_stays_until_the_delay_is_over_and_the_node_is_replaced() -> None:
    stage = stage_with_pod(TERMINATION_OFF)
    stage.put(unready_node("n1"))
    stage.run(60)
    assert phase(stage) == "Pending n1"


def test_untolerated_taint_fails_at_once_but_one_tolerated_for_a_time_when_the_pods_are_gone() -> None:
    taint = {"key": "gone", "effect": "NoExecute"}
    stage = stage_with_pod(TERMINATION_OFF, nodeName="n1")
    stage.put(node("n1", taints=[taint]))
    assert phase(stage) == "Pending n1"
    stage = stage_with_pod(TERMINATION_OFF, nodeName="n1")
    toleration = {"key": "gone", "operator": "Exists", "tolerationSeconds": 9}
    pod_set = make.pod_set("main", 2)
    pod_set["template"]["spec"]["tolerations"] = [toleration]
    stage.put(with_path(stage.workload(), ("spec", "podSets"), [pod_set]))
    stage.put(node("n1", taints=[taint]))
    assert phase(stage) == "Pending"
    stage.put({**stage.get(scheme.POD, "p"), "status": {"phase": "Failed"}})
    assert phase(stage) == "Failed n1"


def test_unready_node_fails_after_a_fixed_time_when_a_pod_ends() -> None:
    for gates, failed in (({"TASReplaceNodeDueToNotReadyOverFixedTime": True}, " n1"), (NO_GATES, "")):
        stage = stage_with_pod(gates, nodeName="n1")
        other = {**stage.get(scheme.POD, "p"), "metadata": make.metadata("q", annotations=POD_ANNOTATIONS)}
        stage.put(other)
        stage.put(unready_node("n1"))
        stage.put(with_path(node("n1"), ("status", "conditions"), [make.condition("Ready", False, since=-30)]))
        stage.put({**stage.get(scheme.POD, "q"), "status": {"phase": "Running"}})
        assert phase(stage) == "Pending"
        stage.put({**stage.get(scheme.POD, "q"), "status": {"phase": "Failed"}})
        assert phase(stage) == f"Pending{failed}"


def test_failed_node_is_noticed_only_at_the_end_of_a_pod_without_the_gate_of_replacements() -> None:
    stage = stage_with_pod({"TASFailedNodeReplacement": False}, nodeName="n1")
    stage.put(node("n1", ready=False))
    assert phase(stage) == "Pending"
    stage.put({**stage.get(scheme.POD, "p"), "status": {"phase": "Failed"}})
    assert phase(stage) == "Failed n1"


def test_replacement_is_searched_again_without_fail_fast() -> None:
    for gates, evicted in (({"TASFailedNodeReplacementFailFast": False}, False), (NO_GATES, True)):
        stage = delayed_stage(ready=True, gates=gates)
        stage.put(new_node("n1a"), node("n2a"))
        stage.run(1)
        stage.delete(scheme.NODE, "n1a", "")
        stage.run(3)
        assert ("EvictedDueToNodeFailures" in stage.reasons()) == evicted
        assert ("SecondPassFailed" in stage.reasons()) != evicted
        if not evicted:
            stage.put(new_node("n1b"))
            stage.run(6)
            assert assigned(stage) == ("Ready", True, ["n1b"])
