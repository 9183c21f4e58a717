"""The topology request of a pod set, from the annotations of its pod template.

Source: pkg/controller/jobframework/tas.go of Kueue. Annotations that make no sense are refused when a job is created;
here they are left out.
"""

from collections.abc import Mapping
from typing import Any

from batchyard.api.annotations import LAYERS_MAX, boolean, layers, whole_number
from batchyard.api.well_known import (
    POD_SET_GROUP,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    SLICE_LAYERS,
    SLICE_SIZE,
    SLICE_TOPOLOGY,
    UNCONSTRAINED_TOPOLOGY,
)


def topology_request(template: Mapping[str, Any], **indices: Any) -> dict[str, Any]:
    """Where the pods of a template want to be, together with the labels that number them (`indices`)."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return {**_placement(annotations), **_slices(annotations), **indices, **_group(annotations)}


def _placement(annotations: Mapping[str, str]) -> dict[str, Any]:
    if REQUIRED_TOPOLOGY in annotations:
        return {"required": annotations[REQUIRED_TOPOLOGY]}
    if PREFERRED_TOPOLOGY in annotations:
        return {"preferred": annotations[PREFERRED_TOPOLOGY]}
    if UNCONSTRAINED_TOPOLOGY in annotations:
        unconstrained = boolean(annotations[UNCONSTRAINED_TOPOLOGY])
        return {} if unconstrained is None else {"unconstrained": unconstrained}
    return {}


def _slices(annotations: Mapping[str, str]) -> dict[str, Any]:
    listed = (layers(annotations[SLICE_LAYERS]) if SLICE_LAYERS in annotations else None) or ()
    if 1 <= len(listed) <= LAYERS_MAX:
        constraints = [{"topology": layer.topology, "size": layer.size} for layer in listed]
        return {"podsetSliceRequiredTopologyConstraints": constraints}
    size = whole_number(annotations.get(SLICE_SIZE, ""), bits=32)
    if SLICE_TOPOLOGY in annotations and size is not None:
        return {"podSetSliceRequiredTopology": annotations[SLICE_TOPOLOGY], "podSetSliceSize": size}
    return {}


def _group(annotations: Mapping[str, str]) -> dict[str, Any]:
    if POD_SET_GROUP in annotations and (REQUIRED_TOPOLOGY in annotations or PREFERRED_TOPOLOGY in annotations):
        return {"podSetGroupName": annotations[POD_SET_GROUP]}
    return {}
