"""The topology request of a pod set, from the annotations of its pod template.

Source: pkg/controller/jobframework/tas.go of Kueue. Annotations that make no sense are refused when a job is created;
here they are left out.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

_PREFIX: Final = "kueue.x-k8s.io/podset-"
_REQUIRED: Final = f"{_PREFIX}required-topology"
_PREFERRED: Final = f"{_PREFIX}preferred-topology"
_UNCONSTRAINED: Final = f"{_PREFIX}unconstrained-topology"
_SLICE_REQUIRED: Final = f"{_PREFIX}slice-required-topology"
_SLICE_SIZE: Final = f"{_PREFIX}slice-size"
_SLICE_CONSTRAINTS: Final = f"{_PREFIX}slice-required-topology-constraints"
_GROUP: Final = f"{_PREFIX}group-name"


def topology_request(template: Mapping[str, Any], **indices: Any) -> dict[str, Any]:
    """Where the pods of a template want to be, together with the labels that number them (`indices`)."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return {**_placement(annotations), **_slices(annotations), **indices, **_group(annotations)}


def _placement(annotations: Mapping[str, str]) -> dict[str, Any]:
    if _REQUIRED in annotations:
        return {"required": annotations[_REQUIRED]}
    if _PREFERRED in annotations:
        return {"preferred": annotations[_PREFERRED]}
    if _UNCONSTRAINED in annotations:
        return {"unconstrained": annotations[_UNCONSTRAINED].lower() in {"1", "t", "true"}}
    return {}


def _slices(annotations: Mapping[str, str]) -> dict[str, Any]:
    constraints = _constraints(annotations.get(_SLICE_CONSTRAINTS))
    if constraints:
        return {"podsetSliceRequiredTopologyConstraints": constraints}
    size = annotations.get(_SLICE_SIZE, "")
    if _SLICE_REQUIRED in annotations and size.isdecimal():
        return {"podSetSliceRequiredTopology": annotations[_SLICE_REQUIRED], "podSetSliceSize": int(size)}
    return {}


def _constraints(text: str | None) -> list[Any]:
    try:
        constraints = json.loads(text or "[]")
    except json.JSONDecodeError:
        return []
    return constraints if isinstance(constraints, list) and len(constraints) <= 3 else []


def _group(annotations: Mapping[str, str]) -> dict[str, Any]:
    if _GROUP in annotations and (_REQUIRED in annotations or _PREFERRED in annotations):
        return {"podSetGroupName": annotations[_GROUP]}
    return {}
