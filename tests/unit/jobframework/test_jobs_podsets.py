"""Admission injects fields into pod templates; the originals are restored later."""

import pytest

import make
from batchyard.api.meta import Obj, with_path
from batchyard.jobframework.workloads import (
    InvalidPodSetInfo,
    PodSetInfo,
    admitted_injections,
    are_pod_sets_equivalent,
    inject_pod_set_info,
    original_injections,
    restore_pod_set_info,
    topology_request,
    without_duplicate_env,
)
from batchyard.scheduling.decisions import DEFAULT_VERSION, decision_rules
from batchyard.scheduling.workload import lifecycle

SPOT = make.flavor(labels={"zone": "a"}, tolerations=[{"key": "spot"}])


def test_restore_reverts_injection() -> None:
    template = make.pod_template(labels={"own": "1"}, nodeSelector={"disk": "ssd"}, tolerations=[{"key": "own"}])
    (original,) = original_injections(make.workload(pod_sets=[{**make.pod_set(), "template": template}]))
    injected = inject_pod_set_info(
        template, PodSetInfo("main", 1, {"l": "1"}, {"a": "2"}, {"zone": "a"}, [{"key": "spot"}])
    )
    assert injected["spec"]["nodeSelector"] == {"disk": "ssd", "zone": "a"}
    assert injected["spec"]["tolerations"] == [{"key": "own"}, {"key": "spot"}]
    assert restore_pod_set_info(injected, original) == template


def test_inject_adds_no_duplicate_toleration() -> None:
    template = make.pod_template(tolerations=[{"key": "spot"}])
    assert inject_pod_set_info(template, PodSetInfo("main", 1, tolerations=[{"key": "spot"}])) == template


def test_conflicting_label_error_names_both_values() -> None:
    template = make.pod_template(labels={"l": "1"})
    with pytest.raises(InvalidPodSetInfo, match="conflict for labels: conflict for key=l, value1=1, value2=2"):
        inject_pod_set_info(template, PodSetInfo("main", 1, {"l": "2"}))


def test_flavor_of_several_resources_is_injected_once() -> None:
    admission = make.admission()
    admission["podSetAssignments"][0]["flavors"] = {"memory": "spot", "cpu": "spot"}
    wl = lifecycle.reserve_quota(make.workload(), admission, make.NOW, admitted=True)
    injections = admitted_injections(wl, lambda _: SPOT)
    assert injections is not None
    assert injections[0].tolerations == [{"key": "spot"}]


def test_admitted_injections_returns_none_for_missing_flavor() -> None:
    wl = lifecycle.reserve_quota(make.workload(), make.admission(), make.NOW, admitted=True)
    assert admitted_injections(wl, lambda _: None) is None


def test_cluster_queue_name_is_omitted_if_invalid_as_label() -> None:
    wl = lifecycle.reserve_quota(make.workload(), make.admission("a.b"), make.NOW, admitted=True)
    injections = admitted_injections(wl, lambda _: SPOT)
    assert injections is not None
    assert "kueue.x-k8s.io/cluster-queue-name" not in injections[0].labels


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        pytest.param(make.pod_set(count=2), False, id="count"),
        pytest.param(make.pod_set(minCount=1), False, id="minimum"),
        pytest.param(make.pod_set(requests={"cpu": "9"}), False, id="containers"),
        pytest.param({**make.pod_set(), "template": make.pod_template(nodeSelector={"a": "b"})}, True, id="selector"),
        pytest.param({**make.pod_set(), "template": make.pod_template(tolerations=[{"key": "k"}])}, False, id="taints"),
    ],
)
def test_equivalent_compares_pod_sets(changed: Obj, same: bool) -> None:
    assert are_pod_sets_equivalent([make.pod_set()], [changed], ignore_tolerations=False) is same


def test_equivalent_can_ignore_tolerations() -> None:
    tolerant = {**make.pod_set(), "template": make.pod_template(tolerations=[{"key": "k"}])}
    assert are_pod_sets_equivalent([make.pod_set()], [tolerant], ignore_tolerations=True)
    assert not are_pod_sets_equivalent([make.pod_set()], [], ignore_tolerations=True)


def test_last_value_of_duplicate_env_variable_is_kept() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "A", "value": "3"}]
    template = {"spec": {"containers": [{"name": "c", "env": env}]}}
    cleaned = without_duplicate_env(template)["spec"]["containers"][0]["env"]
    assert cleaned == [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}]
    once = make.pod_template()
    assert without_duplicate_env(once) is once


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, {}),
        ({"required-topology": "rack", "group-name": "g"}, {"required": "rack", "podSetGroupName": "g"}),
        ({"preferred-topology": "block"}, {"preferred": "block"}),
        ({"unconstrained-topology": "true", "group-name": "g"}, {"unconstrained": True}),
        (
            {"slice-required-topology": "host", "slice-size": "4"},
            {"podSetSliceRequiredTopology": "host", "podSetSliceSize": 4},
        ),
        (
            {"slice-required-topology": "host", "slice-size": "+4"},
            {"podSetSliceRequiredTopology": "host", "podSetSliceSize": 4},
        ),
        ({"slice-required-topology": "host", "slice-size": "many"}, {}),
        ({"unconstrained-topology": "tRUE"}, {}),
        (
            {"slice-required-topology-constraints": '[{"topology": "rack", "size": 2}]'},
            {"podsetSliceRequiredTopologyConstraints": [{"topology": "rack", "size": 2}]},
        ),
        (
            {"slice-required-topology-constraints": '[{"topology": "rack", "size": 2, "colour": "red"}]'},
            {"podsetSliceRequiredTopologyConstraints": [{"topology": "rack", "size": 2}]},
        ),
        ({"slice-required-topology-constraints": "nonsense"}, {}),
    ],
)
def test_topology_request_reads_annotations(annotations: dict[str, str], expected: Obj) -> None:
    named = {f"kueue.x-k8s.io/podset-{name}": value for name, value in annotations.items()}
    template = with_path(make.pod_template(), ("metadata", "annotations"), named)
    assert topology_request(template, podIndexLabel="i") == {**expected, "podIndexLabel": "i"}


def test_pods_with_a_topology_assignment_get_a_gate_until_the_job_stops() -> None:
    admission = make.admission()
    admission["podSetAssignments"][0]["topologyAssignment"] = {"levels": ["rack"], "slices": []}
    gate = {"name": "kueue.x-k8s.io/topology"}
    for request, annotations in (
        ({"required": "rack"}, {}),
        ({}, {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}),
    ):
        created = make.workload(pod_sets=[make.pod_set(topologyRequest=request)])
        wl = lifecycle.reserve_quota(created, admission, make.NOW, admitted=True)
        injections = admitted_injections(wl, lambda _: SPOT)
        assert injections is not None
        template = make.pod_template(schedulingGates=[{"name": "own"}])
        injected = inject_pod_set_info(template, injections[0])
        assert injected["spec"]["schedulingGates"] == [{"name": "own"}, gate]
        assert injected["metadata"]["annotations"] == {"kueue.x-k8s.io/workload": "wl", **annotations}
        (original,) = original_injections(make.workload(pod_sets=[{**make.pod_set(), "template": template}]))
        assert restore_pod_set_info(injected, original) == template


def test_pods_get_no_topology_gate_without_topology_aware_scheduling() -> None:
    admission = make.admission()
    admission["podSetAssignments"][0]["topologyAssignment"] = {"levels": ["rack"], "slices": []}
    wl = lifecycle.reserve_quota(make.workload(), admission, make.NOW, admitted=True)
    injections = admitted_injections(wl, lambda _: SPOT, gates_topology_pods=False)
    assert injections is not None
    assert injections[0].scheduling_gates == ()
    assert not decision_rules(DEFAULT_VERSION, {"TopologyAwareScheduling": False}).gates_topology_pods
