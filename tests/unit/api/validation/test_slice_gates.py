"""The feature gates TASMultiLayerTopology and TASValidateWorkloadSliceSize, which decide about slices."""

from typing import Any

import make
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, with_path
from batchyard.api.validation import validate, validate_update
from batchyard.api.well_known import (
    POD_SET_GROUP,
    REQUIRED_TOPOLOGY,
    SLICE_LAYERS,
    SLICE_SIZE,
    SLICE_TOPOLOGY,
    TAS_MULTIPLE_LAYERS,
    TAS_SLICE_SIZE_VALIDATION,
)
from batchyard.jobframework.workloads import allowed_pod_sets, topology_request
from batchyard.scheduling.decisions import DEFAULT_RULES, DEFAULT_VERSION, decision_rules

LAYERS = '[{"topology": "block", "size": 4}, {"topology": "rack", "size": 2}]'
NO_LAYERS = frozenset([TAS_MULTIPLE_LAYERS])
NO_SIZES = frozenset([TAS_SLICE_SIZE_VALIDATION])
FORBIDDEN = "Forbidden: the TASMultiLayerTopology feature gate must be enabled to use this annotation"
ANNOTATIONS_PATH = ("spec", "template", "metadata", "annotations")


def job(**annotations: str) -> Obj:
    """A Job of four pods with annotations of its pod template."""
    return with_path(make.job(parallelism=4, completions=4), ANNOTATIONS_PATH, annotations)


def sliced(**request: Any) -> Obj:
    """A Workload with a topology request."""
    return make.workload(pod_sets=[make.pod_set("main", 4, topologyRequest=request)])


def problems(obj: Obj, disabled_gates: frozenset[str]) -> list[str]:
    """The errors of a new object, as path and problem."""
    return [f"{error.path}: {error.problem}" for error in validate(obj, disabled_gates)]


def test_layers_of_slices_in_jobs_need_their_gate() -> None:
    obj = job(**{SLICE_LAYERS: LAYERS})
    assert problems(obj, frozenset()) == []
    assert problems(obj, NO_SIZES) == []
    path = f"{'.'.join(ANNOTATIONS_PATH)}[{SLICE_LAYERS}]"
    assert problems(obj, NO_LAYERS) == [f"{path}: {FORBIDDEN}"]
    (error,) = validate_update(obj, obj, NO_LAYERS)
    assert (error.problem, error.webhook) == (FORBIDDEN, "vjob.kb.io")


def test_forbidden_layers_are_not_validated_further() -> None:
    invalid = {SLICE_LAYERS: "[", POD_SET_GROUP: "g", REQUIRED_TOPOLOGY: "rack", SLICE_TOPOLOGY: "rack"}
    texts = problems(job(**invalid), NO_LAYERS)
    assert sum(SLICE_LAYERS in text.partition(":")[2] or f"[{SLICE_LAYERS}]" in text for text in texts) == 1
    assert any(text.endswith(FORBIDDEN) for text in texts)
    assert len(problems(job(**invalid), frozenset())) > len(texts)


def test_layers_of_slices_in_job_sets_need_their_gate() -> None:
    template = {"metadata": {"annotations": {SLICE_LAYERS: LAYERS}}, **make.pod_template()}
    obj = make.jobset(replicated_jobs=[make.replicated_job(template=template, parallelism=4)])
    (text,) = problems(obj, NO_LAYERS)
    assert text.endswith(f"template.spec.template.metadata.annotations[{SLICE_LAYERS}]: {FORBIDDEN}")


def test_slice_sizes_of_workloads_are_validated_with_their_gate() -> None:
    requests: list[dict[str, Any]] = [
        {"podSetSliceRequiredTopology": "rack"},
        {"podSetSliceSize": 2},
        {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 0},
        {"podsetSliceRequiredTopologyConstraints": [{"topology": "rack", "size": -1}]},
    ]
    for request in requests:
        assert len(problems(sliced(**request), NO_LAYERS)) == 1
        assert problems(sliced(**request), NO_SIZES) == []


def test_jobs_with_layers_from_before_the_gate_was_disabled_keep_their_other_slices() -> None:
    template = make.pod_template()
    template["metadata"] = {"annotations": {SLICE_LAYERS: LAYERS, SLICE_TOPOLOGY: "rack", SLICE_SIZE: "2"}}
    pod_set = {"name": "main", "template": template, "topologyRequest": topology_request(template, podIndexLabel="i")}
    assert allowed_pod_sets([pod_set], allows_layers=True) == [pod_set]
    (changed,) = allowed_pod_sets([pod_set], allows_layers=False)
    request = {"podIndexLabel": "i", "podSetSliceRequiredTopology": "rack", "podSetSliceSize": 2}
    assert changed["topologyRequest"] == request
    assert allowed_pod_sets([changed], allows_layers=False) == [changed]


def test_rules_name_the_disabled_gates() -> None:
    assert DEFAULT_RULES.disabled_validation_gates == frozenset()
    gates = {TAS_MULTIPLE_LAYERS: False, TAS_SLICE_SIZE_VALIDATION: True}
    assert decision_rules(DEFAULT_VERSION, gates).disabled_validation_gates == NO_LAYERS


def test_gates_of_a_scenario_apply_to_the_objects_of_all_files() -> None:
    workload = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: w, namespace: team}
spec:
  queueName: lq
  podSets:
  - {name: main, count: 1, topologyRequest: {podSetSliceSize: 2}, template: {spec: {containers: [{name: c, image: i}]}}}
"""
    gates = f"featureGates: {{{TAS_SLICE_SIZE_VALIDATION}: false}}"
    scenario = f"apiVersion: sim.batchyard.dev/v1alpha1\nkind: Scenario\nmetadata: {{name: s}}\nspec: {{{gates}}}\n"
    configuration = f"apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n{gates}\n"
    assert len(read_manifests([("w.yaml", workload)]).faults) == 1
    for settings in (scenario, configuration):
        assert read_manifests([("w.yaml", workload), ("s.yaml", settings)]).faults == []
