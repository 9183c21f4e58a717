"""HorizontalPodAutoscalers: conversion between v1 and v2, defaults and validation."""

import json
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.autoscaling_conversion import to_v1, to_v2
from batchyard.api.defaults import with_defaults
from batchyard.api.printing import row
from batchyard.api.schema import validate as schema_errors
from batchyard.api.validation import validate, validate_update

INFO = scheme.kind_info(scheme.HORIZONTAL_POD_AUTOSCALER)
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}}
OTHERS: list[dict[str, Any]] = [
    {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
    {
        "type": "ContainerResource",
        "containerResource": {
            "name": "cpu",
            "container": "c",
            "target": {"type": "Utilization", "averageUtilization": 10},
        },
    },
    {
        "type": "Pods",
        "pods": {
            "metric": {"name": "requests", "selector": {"matchLabels": {"a": "b"}}},
            "target": {"type": "AverageValue", "averageValue": "5"},
        },
    },
    {
        "type": "Object",
        "object": {
            "describedObject": {"apiVersion": "v1", "kind": "Service", "name": "s"},
            "metric": {"name": "hits"},
            "target": {"type": "Value", "value": "10k"},
        },
    },
    {
        "type": "External",
        "external": {"metric": {"name": "depth"}, "target": {"type": "AverageValue", "averageValue": "3"}},
    },
]
STATUS = {
    "currentReplicas": 2,
    "desiredReplicas": 3,
    "currentMetrics": [
        {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 7, "averageValue": "70m"}}}
    ],
    "conditions": [
        {"type": "AbleToScale", "status": "True", "reason": "r", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ],
}


def autoscaler(**spec: Any) -> dict[str, Any]:
    fields = {"scaleTargetRef": TARGET, "maxReplicas": 3, **spec}
    metadata = {"name": "web", "namespace": "team"}
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": fields}


def errors_of(obj: dict[str, Any]) -> list[str]:
    return [f"{error.path}: {error.problem}" for error in validate(with_defaults(obj))]


def test_both_conversions_keep_everything() -> None:
    behavior = {"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 9}], "tolerance": "0.2"}}
    obj = {**with_defaults(autoscaler(metrics=[*OTHERS, CPU], behavior=behavior)), "status": STATUS}
    old = to_v1(obj)
    assert old["spec"]["targetCPUUtilizationPercentage"] == 60
    assert old["status"] == {"currentReplicas": 2, "desiredReplicas": 3, "currentCPUUtilizationPercentage": 7}
    annotations = old["metadata"]["annotations"]
    kept = json.loads(annotations["autoscaling.alpha.kubernetes.io/behavior"])
    assert kept["ScaleUp"]["Policies"] == [{"Type": "Pods", "Value": 1, "PeriodSeconds": 9}]
    metrics = json.loads(annotations["autoscaling.alpha.kubernetes.io/metrics"])
    assert metrics[0] == {"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}}
    assert not schema_errors(INFO, old)
    assert to_v2(old) == obj


@pytest.mark.parametrize(
    "text", ["{", "[1]", '[{"type":"Pods","pods":7}]', '[{"type":3}]', '[{"kind":1}]', "null", "[[]]"]
)
def test_malformed_annotations_are_ignored(text: str) -> None:
    old = to_v1(autoscaler(metrics=[CPU]))
    names = ("metrics", "current-metrics", "conditions", "behavior")
    old["metadata"] = {**old["metadata"], "annotations": {f"autoscaling.alpha.kubernetes.io/{n}": text for n in names}}
    new = to_v2(old)
    assert new["spec"]["metrics"] == [CPU]
    assert "annotations" not in new["metadata"]
    assert not schema_errors(INFO, new)


def test_defaults_are_those_of_kubernetes() -> None:
    spec = with_defaults(autoscaler(behavior={"scaleDown": {"selectPolicy": "Min"}}))["spec"]
    assert (spec["minReplicas"], spec["metrics"][0]["resource"]["target"]["averageUtilization"]) == (1, 80)
    policies = [{"type": "Percent", "value": 100, "periodSeconds": 15}]
    assert spec["behavior"]["scaleDown"] == {"selectPolicy": "Min", "policies": policies}
    assert spec["behavior"]["scaleUp"]["stabilizationWindowSeconds"] == 0


NO_GROUP = {"kind": "Deployment", "name": "x"}
NO_NAME = {"apiVersion": "apps/v1", "kind": "Deployment"}
NO_VALUE = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}
UTILIZATION = "spec.metrics[0].resource.target.averageUtilization"
WINDOW = "spec.behavior.scaleUp.stabilizationWindowSeconds"


@pytest.mark.parametrize(
    ("spec", "path", "problem"),
    [
        ({"minReplicas": 0}, "spec.minReplicas", "Invalid value: 0: must be greater than or equal to 1"),
        ({"minReplicas": 4}, "spec.maxReplicas", "Invalid value: 3: must be greater than or equal to `minReplicas`"),
        (
            {"scaleTargetRef": NO_GROUP},
            "spec.scaleTargetRef.apiVersion",
            'Invalid value: "": apiVersion must specify API group',
        ),
        ({"scaleTargetRef": NO_NAME}, "spec.scaleTargetRef.name", "Required value"),
        (
            {"metrics": [{"type": "Pods"}]},
            "spec.metrics[0].pods",
            "Required value: must populate information for the given metric source",
        ),
        (
            {"metrics": [{**CPU, **OTHERS[2]}]},
            "spec.metrics[0].resource",
            "Forbidden: must populate the given metric source only",
        ),
        (
            {"metrics": [NO_VALUE]},
            UTILIZATION,
            "Required value: must set either a target raw value or a target utilization",
        ),
        (
            {"behavior": {"scaleUp": {"stabilizationWindowSeconds": 3601}}},
            WINDOW,
            "Invalid value: 3601: must be less than or equal to 3600",
        ),
        (
            {"behavior": {"scaleDown": {"policies": []}}},
            "spec.behavior.scaleDown.policies",
            "Required value: must specify at least one Policy",
        ),
        ({"metrics": [CPU] * 101}, "spec.metrics", "Too many: 101: must have at most 100 items"),
    ],
)
def test_invalid_specs_are_rejected(spec: dict[str, Any], path: str, problem: str) -> None:
    assert f"{path}: {problem}" in errors_of(autoscaler(**spec))


def test_update_may_keep_a_target_without_group() -> None:
    old = with_defaults(autoscaler(scaleTargetRef={"kind": "Deployment", "name": "x"}))
    new = {**old, "spec": {**old["spec"], "maxReplicas": 9}}
    assert (bool(validate(new)), validate_update(new, old)) == (True, [])


def test_printed_targets() -> None:
    obj = {**with_defaults(autoscaler(metrics=[CPU, *OTHERS])), "status": STATUS}
    cells = row(obj, now=0, wide=False)
    assert cells[1:6] == ["Deployment/web", "cpu: 7%/60%, memory: <unknown>/1Gi + 4 more...", "1", "3", "2"]
