"""Conversion of HorizontalPodAutoscalers between autoscaling/v1 and autoscaling/v2, which is the storage version.

Version v1 has one target, the CPU utilization. Annotations keep the other metrics, the conditions and the behavior.
Source: Kubernetes's pkg/apis/autoscaling/v1/conversion.go.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from batchyard.api import schema
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import SECOND

_PREFIX: Final = "autoscaling.alpha.kubernetes.io/"
METRICS_ANNOTATION: Final = f"{_PREFIX}metrics"
CURRENT_METRICS_ANNOTATION: Final = f"{_PREFIX}current-metrics"
CONDITIONS_ANNOTATION: Final = f"{_PREFIX}conditions"
BEHAVIOR_ANNOTATION: Final = f"{_PREFIX}behavior"
_ANNOTATIONS: Final = (METRICS_ANNOTATION, CURRENT_METRICS_ANNOTATION, CONDITIONS_ANNOTATION, BEHAVIOR_ANNOTATION)
_V1: Final = "autoscaling/v1"
_V2: Final = "autoscaling/v2"
#: The exceptions that malformed annotations may cause: users can write annotations.
_MALFORMED_ERRORS: Final = (TypeError, ValueError, KeyError, IndexError, AttributeError, msgspec.DecodeError)
_SOURCES: Final[Mapping[str, str]] = {
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
    "ContainerResource": "containerResource",
    "External": "external",
}


def _cpu_metric(utilization: int) -> dict[str, Any]:
    target = {"type": "Utilization", "averageUtilization": utilization}
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


def to_v2(obj: Obj) -> dict[str, Any]:
    """Convert a HorizontalPodAutoscaler from v1 to v2; malformed annotations of v1 are ignored."""
    annotations: Mapping[str, str] = obj["metadata"].get("annotations") or {}
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    utilization = spec.pop("targetCPUUtilizationPercentage", None)
    metrics = _restored(annotations, METRICS_ANNOTATION, _metrics_to_v2) or []
    if utilization is not None:
        metrics = [*metrics, _cpu_metric(utilization)]
    if metrics:
        spec["metrics"] = metrics
    if behavior := _restored(annotations, BEHAVIOR_ANNOTATION, _behavior_to_v2):
        spec["behavior"] = behavior
    current = status.pop("currentCPUUtilizationPercentage", None)
    if current is not None:
        resource = {"name": "cpu", "current": {"averageUtilization": current}}
        status["currentMetrics"] = [{"type": "Resource", "resource": resource}]
    for name, restore, field in (
        (CURRENT_METRICS_ANNOTATION, _current_metrics_to_v2, "currentMetrics"),
        (CONDITIONS_ANNOTATION, _conditions_to_v2, "conditions"),
    ):
        if restored := _restored(annotations, name, restore):
            status[field] = restored
    converted = {**obj, "apiVersion": _V2, "spec": spec, **({"status": status} if status else {})}
    return _with_annotations(converted, {})


def to_v1(obj: Obj) -> dict[str, Any]:
    """Convert a HorizontalPodAutoscaler from v2 to v1."""
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    annotations: dict[str, Any] = {}
    metrics = spec.pop("metrics", None) or ()
    cpu_targets = [each["resource"]["target"]["averageUtilization"] for each in metrics if _is_cpu_utilization(each)]
    if cpu_targets:
        spec["targetCPUUtilizationPercentage"] = cpu_targets[0]
    if others := [_metric_to_v1(each, "target") for each in metrics if not _is_cpu_utilization(each)]:
        annotations[METRICS_ANNOTATION] = others
    current_metrics = status.pop("currentMetrics", None) or ()
    for each in current_metrics:
        resource = each.get("resource") or {}
        if resource.get("name") == "cpu" and resource["current"].get("averageUtilization") is not None:
            status["currentCPUUtilizationPercentage"] = resource["current"]["averageUtilization"]
    if current_metrics:
        annotations[CURRENT_METRICS_ANNOTATION] = [_metric_to_v1(each, "current") for each in current_metrics]
    behavior = spec.pop("behavior", None)
    if behavior is not None:
        annotations[BEHAVIOR_ANNOTATION] = _behavior_to_v1(behavior)
    if conditions := status.pop("conditions", None):
        annotations[CONDITIONS_ANNOTATION] = [_condition_to_v1(each) for each in conditions]
    status = {"currentReplicas": 0, "desiredReplicas": 0, **status}
    return _with_annotations({**obj, "apiVersion": _V1, "spec": spec, "status": status}, annotations)


def _with_annotations(obj: dict[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    old: Mapping[str, str] = obj["metadata"].get("annotations") or {}
    kept = {name: text for name, text in old.items() if name not in _ANNOTATIONS}
    new = {**kept, **{name: msgspec.json.encode(value).decode() for name, value in added.items()}}
    return obj if new == old else with_metadata(obj, annotations=new or None)


def _restored(annotations: Mapping[str, str], name: str, convert: Callable[[Any], Any]) -> Any:
    """Return the converted value of an annotation; None if it is missing or malformed."""
    text = annotations.get(name)
    if not text:
        return None
    try:
        return convert(msgspec.json.decode(text))
    except _MALFORMED_ERRORS:
        return None


def _check(type_name: str, values: Sequence[Any]) -> Sequence[Any]:
    for value in values:
        if schema.validate(type_name, value):
            raise ValueError(type_name)
    return values


def _is_cpu_utilization(metric: Mapping[str, Any]) -> bool:
    resource = metric.get("resource") or {}
    is_cpu = metric["type"] == "Resource" and resource.get("name") == "cpu"
    return is_cpu and (resource.get("target") or {}).get("averageUtilization") is not None


# Metrics: in v1, the name of a field of the target starts with `target`, and of the current value with `current`.


def _metrics_to_v2(metrics: Any) -> Sequence[Any]:
    return _check("MetricSpec", [_metric_to_v2(each, "target") for each in metrics])


def _current_metrics_to_v2(metrics: Any) -> Sequence[Any]:
    return _check("MetricStatus", [_metric_to_v2(each, "current") for each in metrics])


def _metric_to_v1(metric: Mapping[str, Any], role: str) -> dict[str, Any]:
    """Convert a metric; `role` is `target` in specs and `current` in statuses."""
    return _convert_source(metric, role, _source_to_v1)


def _metric_to_v2(metric: Mapping[str, Any], role: str) -> dict[str, Any]:
    return _convert_source(metric, role, _source_to_v2)


def _convert_source(
    metric: Mapping[str, Any], role: str, convert: Callable[[str, Mapping[str, Any], str], Mapping[str, Any]]
) -> dict[str, Any]:
    converted: dict[str, Any] = {"type": metric["type"]}
    for metric_type, field in _SOURCES.items():
        source = metric.get(field)
        if source is not None:
            converted[field] = _without_nulls(convert(metric_type, source, role))
    return converted


def _source_to_v1(metric_type: str, source: Mapping[str, Any], role: str) -> dict[str, Any]:
    values, identifier = source.get(role) or {}, source.get("metric") or {}
    average_value, selector = values.get("averageValue"), identifier.get("selector")
    match metric_type:
        case "Resource" | "ContainerResource":
            average = {f"{role}AverageUtilization": values.get("averageUtilization")}
            average[f"{role}AverageValue"] = average_value if role == "target" else average_value or "0"
            return {"name": source.get("name"), **average, "container": source.get("container")}
        case "Pods":
            name = {"metricName": identifier.get("name"), f"{role}AverageValue": average_value or "0"}
            return {**name, "selector": selector}
        case "Object":
            described = source.get("describedObject") or {}
            name = {"target": described, "metricName": identifier.get("name"), f"{role}Value": values.get("value", "0")}
            return {**name, "selector": selector, "averageValue": average_value}
    value = values.get("value") if role == "target" else values.get("value", "0")
    name = {"metricName": identifier.get("name"), "metricSelector": selector}
    return {**name, f"{role}Value": value, f"{role}AverageValue": average_value}


def _source_to_v2(metric_type: str, source: Mapping[str, Any], role: str) -> dict[str, Any]:
    average_value, value = source.get(f"{role}AverageValue"), source.get(f"{role}Value")
    identifier = _without_nulls({"name": source.get("metricName"), "selector": source.get("selector")})
    match metric_type:
        case "Resource" | "ContainerResource":
            utilization = source.get(f"{role}AverageUtilization")
            target_type = "AverageValue" if utilization is None else "Utilization"
            values = {"averageValue": average_value, "averageUtilization": utilization}
            name = {"name": source.get("name"), "container": source.get("container")}
            return {**name, role: _target(role, target_type, values)}
        case "Pods":
            return {"metric": identifier, role: _target(role, "AverageValue", {"averageValue": average_value})}
        case "Object":
            average_value = source.get("averageValue")
            target_type = "Value" if average_value is None else "AverageValue"
            has_value = role == "current" or average_value is None or str(value or "0") != "0"
            values = {"value": (value or "0") if has_value else None, "averageValue": average_value}
            return {"describedObject": source["target"], "metric": identifier, role: _target(role, target_type, values)}
    identifier = _without_nulls({"name": source.get("metricName"), "selector": source.get("metricSelector")})
    target_type = "AverageValue" if value is None else "Value"
    return {"metric": identifier, role: _target(role, target_type, {"value": value, "averageValue": average_value})}


def _target(role: str, target_type: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {**({"type": target_type} if role == "target" else {}), **_without_nulls(values)}


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


# The behavior: Kubernetes writes its internal type, whose names start with a capital letter.


def _behavior_to_v1(behavior: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _rules_to_v1(behavior.get(_uncapitalized(name))) for name in ("ScaleUp", "ScaleDown")}


def _rules_to_v1(rules: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if rules is None:
        return None
    names = ("StabilizationWindowSeconds", "SelectPolicy", "Policies", "Tolerance")
    converted = {name: rules.get(_uncapitalized(name)) for name in names}
    policies = [{name[0].upper() + name[1:]: each[name] for name in each} for each in converted["Policies"] or ()]
    return {**converted, "Policies": policies or None}


def _behavior_to_v2(behavior: Any) -> Any:
    converted = _uncapitalize_names(behavior)
    return _check("HorizontalPodAutoscalerBehavior", [converted])[0]


def _uncapitalize_names(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_uncapitalized(k): _uncapitalize_names(v) for k, v in value.items() if v is not None}
    return [_uncapitalize_names(each) for each in value] if isinstance(value, list) else value


def _uncapitalized(name: str) -> str:
    return name[:1].lower() + name[1:]


# Conditions.


def _condition_to_v1(condition: Mapping[str, Any]) -> Mapping[str, Any]:
    text = condition.get("lastTransitionTime")
    return {**condition, "lastTransitionTime": format_time(parse_time(text) // SECOND * SECOND) if text else None}


def _conditions_to_v2(conditions: Any) -> Sequence[Any]:
    return _check("HorizontalPodAutoscalerCondition", [_without_nulls(each) for each in conditions])
