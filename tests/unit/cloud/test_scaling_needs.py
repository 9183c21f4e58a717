"""Requirements of pods for nodes that no pool has."""

from typing import Any

import pytest

from batchyard.cloud.cluster_objects import (
    NodeRequirements,
    UnsatisfiableRequirements,
    is_system_label,
    node_requirements_of,
    run_duration_fault,
)
from unit.autoscaler.scaling_make_core import views

GKE = "cloud.google.com"


def needs(**fields: Any) -> NodeRequirements:
    result = node_requirements_of(views("p", **fields)[0])
    assert isinstance(result, NodeRequirements)
    return result


def equal(key: str, value: str, effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": key, "operator": "Equal", "value": value, "effect": effect}


def test_node_selectors_determine_machine() -> None:
    result = needs(
        gpu=1,
        nodeSelector={f"{GKE}/gke-spot": "true", f"{GKE}/gke-accelerator": "nvidia-l4", f"{GKE}/machine-family": "g2"},
    )
    assert (result.provisioning, result.accelerator, result.accelerator_count, result.family) == (
        "spot",
        "nvidia-l4",
        1,
        "g2",
    )


def test_tpu_count_derives_from_label_or_request() -> None:
    selector = {f"{GKE}/gke-tpu-accelerator": "tpu-v5-lite-podslice", f"{GKE}/gke-tpu-topology": "2x4"}
    result = needs(requests={"google.com/tpu": "4"}, nodeSelector=selector)
    assert (result.accelerator, result.topology, result.accelerator_count) == ("tpu-v5-lite-podslice", "2x4", 4)
    counted = {**selector, f"{GKE}/gke-accelerator-count": "8"}
    assert needs(requests={"google.com/tpu": "4"}, nodeSelector=counted).accelerator_count == 8


def test_label_with_toleration_separates_workloads() -> None:
    result = needs(nodeSelector={"team": "a"}, tolerations=[equal("team", "a"), equal("other", "b")])
    assert result.labels == (("team", "a"),)
    assert [(taint.key, taint.value, taint.effect) for taint in result.taints] == [("team", "a", "NoSchedule")]


def test_toleration_of_any_value_separates_workloads() -> None:
    result = needs(nodeSelector={"team": "a"}, tolerations=[{"key": "team", "operator": "Exists"}])
    assert [(taint.value, taint.effect) for taint in result.taints] == [("a", "NoSchedule")]


def test_label_without_toleration_is_unsatisfiable() -> None:
    result = node_requirements_of(views("p", nodeSelector={"team": "a"})[0])
    assert result == UnsatisfiableRequirements("no toleration for a taint with the key of label team")


@pytest.mark.parametrize(
    ("seconds", "provisioning", "words"),
    [
        ("", "queued", ""),
        ("3600", "standard", ""),
        ("604800", "flex-start", ""),
        ("1h", "spot", "MaxRunDuration is not a valid int64."),
        ("9", "spot", "MaxRunDuration is not within the allowed range (30 seconds - 120 days). Got 9 seconds."),
        ("60", "flex-start", "MaxRunDuration is not within the allowed range (10 minutes - 7 days). Got 60 seconds."),
        ("3600", "queued", "MaxRunDuration cannot be set on non-bulk QueuedProvisioning pools."),
    ],
)
def test_run_duration_outside_gke_limits_is_rejected(seconds: str, provisioning: str, words: str) -> None:
    assert run_duration_fault(seconds, provisioning) == words


def test_required_affinity_counts_like_selector() -> None:
    expression = {"key": f"{GKE}/gke-spot", "operator": "In", "values": ["true"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert needs(affinity=affinity).provisioning == "spot"


@pytest.mark.parametrize(
    ("selector", "expected"),
    [({f"{GKE}/gke-flex-start": "true"}, "flex-start"), ({f"{GKE}/gke-provisioning": "standard"}, "standard")],
)
def test_provisioning_is_read_from_labels(selector: dict[str, str], expected: str) -> None:
    assert needs(nodeSelector=selector).provisioning == expected


def test_system_labels_are_those_of_kubernetes_and_gke() -> None:
    system = ["cloud.google.com/x", "node.kubernetes.io/x", "topology.gke.io/zone", "kueue.x-k8s.io/y"]
    assert all(map(is_system_label, system))
    assert not any(map(is_system_label, ["team", "example.com/x", "notkubernetes/x"]))
