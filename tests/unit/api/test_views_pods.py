"""The scheduler's view of a Pod."""

from typing import Any

import make
from batchyard.api.meta import Requirement, Selector, with_metadata, with_path, with_status
from batchyard.api.views.pod_shape import HostPort
from batchyard.api.views.pods import PodView, pod_view
from unit.placement.placement_make import HOST, ZONE, member, pod, pod_term, preferred, required


def with_containers(*containers: Any, **spec: Any) -> Any:
    """Return a Pod with these containers."""
    return with_path(pod(**spec), ("spec", "containers"), list(containers))


def selects(view: PodView, labels: dict[str, str], namespace: str = "team", **namespaces: Any) -> bool:
    """Return whether the only affinity term of a Pod selects another Pod."""
    (term,) = view.shape.affinity
    return term.selects(namespace, labels, namespaces)


def test_pod_requests_include_pods_resource_and_omit_zero_amounts() -> None:
    assert pod_view(pod(cpu="500m", memory="1Ki", gpu="0")).requests == (("pods", 1), ("cpu", 500), ("memory", 1024))


def test_scored_requests_have_defaults_for_missing_requests() -> None:
    shape = pod_view(with_containers({"name": "a"}, {"name": "b", "resources": {"requests": {"cpu": "1"}}})).shape
    assert (shape.cpu, shape.memory) == (1000, 0)
    assert (shape.scored_cpu, shape.scored_memory) == (1100, 400 * 1024**2)


def test_limit_is_used_as_missing_request() -> None:
    shape = pod_view(with_containers({"name": "a", "resources": {"limits": {"cpu": "2"}}})).shape
    assert (shape.cpu, shape.scored_cpu) == (2000, 2000)


def test_pods_with_equal_content_share_shape() -> None:
    assert pod_view(pod("a")).shape is pod_view(pod("b", labels={"x": "y"}, priority=5)).shape
    assert pod_view(pod("a")).shape is not pod_view(pod("c", cpu="2")).shape


def test_pod_view_is_cached_per_object() -> None:
    obj = pod()
    assert pod_view(obj) is pod_view(obj)


def test_pod_view_reuses_spec_after_status_update() -> None:
    obj = pod(priority=7)
    view = pod_view(obj)
    newer = pod_view(with_status(obj, {"phase": "Running", "startTime": make.stamp(5)}))
    assert (newer.shape, newer.priority, newer.created) == (view.shape, 7, view.created)
    assert (newer.phase, newer.started, newer.is_terminal) == ("Running", make.at(5), False)


def test_pod_view_follows_label_update() -> None:
    obj = pod(labels={"a": "b"})
    pod_view(obj)
    assert pod_view(with_metadata(obj, labels={"a": "c"})).labels == {"a": "c"}


def test_pod_awaits_node_until_bound_finished_or_deleted() -> None:
    assert pod_view(pod("a")).awaits_node
    assert not pod_view(pod("b", nodeName="n")).awaits_node
    assert not pod_view(pod("c", status={"phase": "Failed"})).awaits_node
    assert not pod_view(pod("d", deleted=make.stamp())).awaits_node


def test_pod_with_scheduling_gates_is_gated() -> None:
    assert pod_view(pod(schedulingGates=[{"name": "g"}])).gated
    assert not pod_view(pod(schedulingGates=[])).gated


def test_only_pods_of_workloads_have_gang() -> None:
    assert pod_view(member("a", "uid-of-job")).gang == "uid-of-job"
    jobset = {"jobset.sigs.k8s.io/jobset-uid": "uid-of-jobset"}
    assert pod_view(member("b", "uid-of-job", labels=jobset)).gang == "uid-of-jobset"
    assert pod_view(pod("c", annotations={"kueue.x-k8s.io/workload": "wl"})).gang == "team/wl"
    assert pod_view(pod("d", labels=jobset)).gang == ""


def test_pod_may_preempt_unless_policy_is_never() -> None:
    assert pod_view(pod("a")).may_preempt
    assert not pod_view(pod("b", preemptionPolicy="Never")).may_preempt


def test_pod_view_reads_scheduling_failure_from_condition() -> None:
    waits = {"conditions": [make.condition("PodScheduled", False, reason="Unschedulable", message="no room")]}
    gated = {"conditions": [make.condition("PodScheduled", False, reason="SchedulingGated", message="gated")]}
    bound = {"conditions": [make.condition("PodScheduled")]}
    views = [pod_view(pod(name, status=status)) for name, status in zip("abc", (waits, gated, bound), strict=True)]
    assert [v.unschedulable_message for v in views] == ["no room", "", ""]
    assert [v.unscheduled_reason for v in views] == ["Unschedulable", "SchedulingGated", ""]


def test_pod_is_preempted_during_deletion_by_scheduler() -> None:
    status = {"conditions": [make.condition("DisruptionTarget", reason="PreemptionByScheduler")]}
    assert pod_view(pod("a", status=status, deleted=make.stamp())).preempted
    assert not pod_view(pod("b", status=status)).preempted
    drained = {"conditions": [make.condition("DisruptionTarget", reason="EvictionByEvictionAPI")]}
    assert not pod_view(pod("c", status=drained, deleted=make.stamp())).preempted


def test_affinity_term_without_namespaces_selects_own_namespace() -> None:
    view = pod_view(pod(affinity=required("podAffinity", pod_term(HOST))))
    assert selects(view, {"app": "a"})
    assert not selects(view, {"app": "a"}, "other")
    assert not selects(view, {"app": "b"})


def test_affinity_term_selects_namespaces_by_list_and_selector() -> None:
    listed = pod_view(pod("a", affinity=required("podAffinity", pod_term(HOST, namespaces=["other"]))))
    assert selects(listed, {"app": "a"}, "other")
    assert not selects(listed, {"app": "a"}, "team")
    selecting = pod_term(HOST, namespaceSelector={"matchLabels": {"kind": "x"}})
    selected = pod_view(pod("b", affinity=required("podAffinity", selecting)))
    assert selects(selected, {"app": "a"}, "other", other={"kind": "x"})
    assert not selects(selected, {"app": "a"}, "other", other={"kind": "y"})
    assert not selects(selected, {"app": "a"}, "team")


def test_empty_namespace_selector_selects_all_namespaces() -> None:
    view = pod_view(pod(affinity=required("podAffinity", pod_term(HOST, namespaceSelector={}))))
    assert selects(view, {"app": "a"}, "anywhere")


def test_affinity_term_without_label_selector_selects_no_pod() -> None:
    view = pod_view(pod(affinity=required("podAffinity", {"topologyKey": HOST})))
    assert not selects(view, {})


def test_match_label_keys_use_values_of_own_labels() -> None:
    term = pod_term(HOST, matchLabelKeys=["version", "missing"], mismatchLabelKeys=["tenant"])
    labels = {"app": "a", "version": "2", "tenant": "x"}
    view = pod_view(pod(labels=labels, affinity=required("podAffinity", term)))
    assert selects(view, {**labels, "tenant": "y"})
    assert not selects(view, labels)
    assert not selects(view, {**labels, "tenant": "y", "version": "1"})


def test_pods_with_match_label_keys_and_other_labels_share_no_shape() -> None:
    term = required("podAffinity", pod_term(HOST, matchLabelKeys=["version"]))
    one, two, three = [pod_view(pod(n, labels={"version": n[0]}, affinity=term)) for n in ("1a", "2a", "1b")]
    assert one.shape is three.shape
    assert one.shape is not two.shape


def test_preferred_affinity_and_anti_affinity_have_signed_weights() -> None:
    both = {**preferred("podAffinity", 3, pod_term(HOST)), **preferred("podAntiAffinity", 4, pod_term(ZONE))}
    shape = pod_view(pod(affinity=both)).shape
    assert [(weight, term.topology_key) for weight, term in shape.preferred_terms] == [(3, HOST), (-4, ZONE)]
    assert not shape.depends_on_pods


def test_topology_spread_constraint_gets_kubernetes_defaults() -> None:
    (rule,) = pod_view(pod(topologySpreadConstraints=[{"topologyKey": ZONE, "maxSkew": 2}])).shape.spread_rules
    assert rule == (ZONE, 2, True, None, 1, True, False)


def test_topology_spread_constraint_fields_are_read() -> None:
    constraint = {
        "topologyKey": HOST,
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
        "minDomains": 3,
        "nodeAffinityPolicy": "Ignore",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": {"a": "b"}},
        "matchLabelKeys": ["v"],
    }
    (rule,) = pod_view(pod(labels={"v": "1"}, topologySpreadConstraints=[constraint])).shape.spread_rules
    selector = Selector((Requirement("a", "In", ("b",)), Requirement("v", "In", ("1",))))
    assert rule == (HOST, 1, False, selector, 3, False, True)


def test_host_ports_are_read_from_containers_and_sidecars() -> None:
    port = {"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1", "protocol": "UDP"}
    obj = with_containers({"name": "a", "ports": [port, {"containerPort": 81}]})
    sidecar = {"name": "s", "restartPolicy": "Always", "ports": [{"hostPort": 9}]}
    obj = with_path(obj, ("spec", "initContainers"), [sidecar, {"name": "i", "ports": [{"hostPort": 7}]}])
    assert pod_view(obj).shape.host_ports == (HostPort("0.0.0.0", "TCP", 9), HostPort("10.0.0.1", "UDP", 8080))


def test_host_network_pod_uses_all_ports_as_host_ports() -> None:
    view = pod_view(pod(hostNetwork=True, ports=[{"containerPort": 81}]))
    assert view.shape.host_ports == (HostPort("0.0.0.0", "TCP", 81),)
