"""Checks before a Job is submitted: the node selector of a GPU model, and flavors with untolerated taints."""

from collections.abc import Mapping
from typing import Any

import pytest

from batchyard.api.views.node import FlavorView, flavor_view
from batchyard.api.views.workload import cluster_queue_view
from batchyard.cli.submit.cluster import SubmitError, check_flavors, match_gpu_model
from batchyard.cli.submit.manifests import JobRequest

GKE = "cloud.google.com/gke-accelerator"


def request(**fields: Any) -> JobRequest:
    return JobRequest(("true",), "job", "queue", "image", "default", cpu="1", **fields)


def flavors(**spec_by_name: Mapping[str, Any]) -> Mapping[str, FlavorView]:
    return {name: flavor_view({"metadata": {"name": name}, "spec": spec}) for name, spec in spec_by_name.items()}


def node(name: str, **labels: str) -> Mapping[str, Any]:
    fields = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **fields}}}


def test_model_selects_label_of_flavor_before_labels_of_nodes() -> None:
    known = flavors(big={"nodeLabels": {GKE: "nvidia-tesla-a100"}}, small={"nodeLabels": {GKE: "nvidia-l4"}})
    match = match_gpu_model(request(gpu_model="A100"), known, [node("n", nvidia_com__gpu_product="NVIDIA-A100-SXM4")])
    assert match.node_selector == {GKE: "nvidia-tesla-a100"}
    assert match.remark == f"GPU model A100: flavor big, node label {GKE}=nvidia-tesla-a100"


def test_model_selects_label_of_nodes_without_label_of_flavor() -> None:
    nodes = [
        node("a100-1", nvidia_com__gpu_product="NVIDIA-A100-SXM4", pool="a100-pool"),
        node("n2", zone="us-east4-a"),
    ]
    match = match_gpu_model(request(gpu_model="a100"), flavors(any={}), nodes)
    assert match.node_selector == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4"}


def test_part_of_a_word_is_no_model() -> None:
    with pytest.raises(SubmitError, match=r"GPU model t4 not found .*; available: none has a label with a GPU model"):
        match_gpu_model(request(gpu_model="t4"), flavors(any={}), [node("n", zone="us-east4-a")])


def test_two_models_are_ambiguous_unless_one_is_exact() -> None:
    known = flavors(a={"nodeLabels": {GKE: "nvidia-a100"}}, b={"nodeLabels": {GKE: "nvidia-a100-80gb"}})
    with pytest.raises(SubmitError, match=r"a100 is ambiguous: .*=nvidia-a100 \(flavor a\); .*-80gb \(flavor b\)"):
        match_gpu_model(request(gpu_model="a100"), known, None)
    assert match_gpu_model(request(gpu_model="nvidia-a100"), known, None).node_selector == {GKE: "nvidia-a100"}


def test_missing_model_names_available_models() -> None:
    known = flavors(a={"nodeLabels": {GKE: "nvidia-l4"}})
    with pytest.raises(SubmitError, match=r"GPU model h100 not found .*; available: nvidia-l4$"):
        match_gpu_model(request(gpu_model="h100"), known, ())


def test_missing_model_names_kinds_without_permission() -> None:
    text = "not found in the labels of the flavors of queue .* (no permission to list Nodes); available: nvidia-l4"
    with pytest.raises(SubmitError, match=text.replace("(", r"\(").replace(")", r"\)")):
        match_gpu_model(request(gpu_model="h100"), flavors(a={"nodeLabels": {GKE: "nvidia-l4"}}), None)
    with pytest.raises(
        SubmitError, match=r"labels of the nodes \(no permission to list ResourceFlavors\); available: none"
    ):
        match_gpu_model(request(gpu_model="h100"), None, [node("n", zone="us-east4-a")])


def queue_of(*names: str) -> Any:
    quota = [{"name": "cpu", "nominalQuota": 1}]
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": name, "resources": quota} for name in names]}]
    return cluster_queue_view({"metadata": {"name": "cq"}, "spec": {"resourceGroups": groups}})


SPOT = {"nodeTaints": [{"key": "spot", "value": "true", "effect": "NoSchedule"}]}


def test_taints_of_all_flavors_are_named_with_their_tolerations() -> None:
    known = flavors(one=SPOT, two={"nodeTaints": [{"key": "gpu", "effect": "NoSchedule"}]})
    with pytest.raises(SubmitError) as error:
        check_flavors(request(), queue_of("one", "two"), known)
    assert str(error.value) == (
        "no flavor of ClusterQueue cq accepts the Job: flavor one has the taint spot=true:NoSchedule; flavor two has"
        " the taint gpu:NoSchedule; add --toleration spot=true:NoSchedule or --toleration gpu:NoSchedule"
    )


def test_one_usable_flavor_is_enough() -> None:
    toleration = {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    check_flavors(request(), queue_of("one", "two"), flavors(one=SPOT, two={}))
    check_flavors(request(tolerations=[toleration]), queue_of("one"), flavors(one=SPOT))


def test_selected_flavor_with_taint_is_rejected_although_another_has_none() -> None:
    known = flavors(one={**SPOT, "nodeLabels": {"kind": "a"}}, two={"nodeLabels": {"kind": "b"}})
    with pytest.raises(SubmitError, match="flavor two doesn't match node affinity; add --toleration spot=true"):
        check_flavors(request(node_selector={"kind": "a"}), queue_of("one", "two"), known)
