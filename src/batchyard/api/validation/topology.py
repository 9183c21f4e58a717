"""Validation of Topologies, of topology requests in pod template annotations, and of topology assignments.

Source: the rules in Kueue's CRDs and webhooks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypedDict

import msgspec

from batchyard.api import well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import parse_boolean, parse_integer
from batchyard.api.validation import rules
from batchyard.api.well_known import (
    POD_SET_GROUP,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    SLICE_LAYERS,
    SLICE_SIZE,
    SLICE_TOPOLOGY,
    UNCONSTRAINED_TOPOLOGY,
)

#: The maximum number of layers of nested slices.
SLICE_LAYERS_MAX: Final = 3


class SliceLayer(NamedTuple):
    """A layer of a pod set's nested slices, from an annotation: its topology level and the number of pods per slice."""

    topology: str = ""
    size: int = 0


class _SliceLayerFields(TypedDict, total=False):
    topology: str
    size: int


def parse_slice_layers(text: str) -> list[SliceLayer] | None:
    """Parse the annotation that lists the layers of nested pod set slices; None if it is malformed."""
    try:
        return [SliceLayer(**layer) for layer in msgspec.json.decode(text, type=list[_SliceLayerFields])]
    except (msgspec.DecodeError, RecursionError):
        return None


# Rules of the annotations of a pod template that request a topology.
#
# Source: Kueue's pkg/controller/jobframework/tas_validation.go at its default feature gates.


AnnotationMap = Mapping[str, str]
_POD_SET_ANNOTATION_PREFIX: Final = "kueue.x-k8s.io/podset-"


@dataclass(frozen=True, slots=True)
class PodSetTopology:
    """The topology annotations of one pod set, their path in the object (for error messages), and the pod count."""

    annotations: AnnotationMap
    path: str
    count: int


def topology_request_errors(
    annotations: AnnotationMap, path: str, pod_count: int, *, is_elastic_job: bool = False
) -> Iterator[FieldError]:
    """Validate the topology annotations of a pod template, from which `pod_count` pods are created.

    `is_elastic_job` is true if the template belongs to an elastic Job.
    """
    if not any(name.startswith(_POD_SET_ANNOTATION_PREFIX) for name in annotations):
        return
    yield from _topology_mode_errors(annotations, path)
    yield from _slice_annotation_errors(annotations, path, pod_count)
    for error in _slice_layers_annotation_errors(annotations, path, pod_count):
        yield error._replace(gate=well_known.TAS_MULTIPLE_LAYERS)
    yield from _pod_set_group_name_errors(annotations, path)
    for mode, name in (("required", REQUIRED_TOPOLOGY), ("preferred", PREFERRED_TOPOLOGY)):
        if is_elastic_job and name in annotations:
            message = f"{mode} topology is not supported with elastic jobs"
            remedy = f"use {UNCONSTRAINED_TOPOLOGY}, or remove the annotation {well_known.ELASTIC_JOB}"
            yield rules.forbidden(f"{path}.{name}", message, remedy)


def _topology_mode_errors(annotations: AnnotationMap, path: str) -> Iterator[FieldError]:
    mode_annotations = (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, UNCONSTRAINED_TOPOLOGY)
    if sum(mode in annotations for mode in mode_annotations) > 1:
        shown_annotations = ", ".join(map(rules.format_json, mode_annotations))
        message = f"must not contain more than one topology annotation: [{shown_annotations}]"
        yield rules.invalid_without_value(path, message, "keep one of these annotations")
    for name in (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, SLICE_TOPOLOGY):
        if name in annotations:
            yield from rules.label_key_errors(annotations[name], f"{path}[{name}]")
    value = annotations.get(UNCONSTRAINED_TOPOLOGY)
    if value is not None and parse_boolean(value) is None:
        yield rules.invalid(
            f"{path}[{UNCONSTRAINED_TOPOLOGY}]", value, "must be a boolean value", 'use "true" or "false"'
        )


def _slice_annotation_errors(annotations: AnnotationMap, path: str, count: int) -> Iterator[FieldError]:
    value, item_path = annotations.get(SLICE_SIZE), f"{path}[{SLICE_SIZE}]"
    if value is None:
        if SLICE_TOPOLOGY in annotations:
            remedy = "specify the number of pods in a slice"
            yield rules.required(item_path, f"must be set when '{SLICE_TOPOLOGY}' is specified", remedy)
        return
    slice_size = parse_integer(value, bits=32)
    if slice_size is None:
        yield rules.invalid(item_path, value, "must be a numeric value", f"use a number from 1 to {count}")
    elif slice_size < 1:
        yield rules.invalid(item_path, value, "must be greater than or equal to 1", f"use a number from 1 to {count}")
    elif slice_size > count:
        message = f"must not be greater than pod set count {count}"
        yield rules.invalid(item_path, value, message, f"use a number from 1 to {count}")
    if SLICE_TOPOLOGY not in annotations:
        remedy = f"add {SLICE_TOPOLOGY}, or remove {SLICE_SIZE}"
        yield rules.forbidden(item_path, f"may not be set when '{SLICE_TOPOLOGY}' is not specified", remedy)


def _pod_set_group_name_errors(annotations: AnnotationMap, path: str) -> Iterator[FieldError]:
    group_name, item_path = annotations.get(POD_SET_GROUP), f"{path}[{POD_SET_GROUP}]"
    if group_name is None:
        return
    if group_name.isascii() and group_name.isdigit():
        yield rules.invalid(item_path, group_name, "must not be a number", "use a name with letters")
    for name in (SLICE_SIZE, SLICE_TOPOLOGY, SLICE_LAYERS):
        if name in annotations:
            error = rules.forbidden(item_path, f"may not be set when '{name}' is specified", "remove one of the two")
            yield error._replace(gate=well_known.TAS_MULTIPLE_LAYERS) if name == SLICE_LAYERS else error
    if PREFERRED_TOPOLOGY not in annotations and REQUIRED_TOPOLOGY not in annotations:
        message = f"may not be set when neither '{PREFERRED_TOPOLOGY}' nor '{REQUIRED_TOPOLOGY}' is specified"
        yield rules.forbidden(item_path, message, f"add {PREFERRED_TOPOLOGY} or {REQUIRED_TOPOLOGY}")


def _slice_layers_annotation_errors(annotations: AnnotationMap, path: str, count: int) -> Iterator[FieldError]:
    text, item_path = annotations.get(SLICE_LAYERS), f"{path}[{SLICE_LAYERS}]"
    if text is None:
        return
    for name in (SLICE_TOPOLOGY, SLICE_SIZE):
        if name in annotations:
            yield rules.forbidden(item_path, f"may not be set when '{name}' is specified", "remove one of the two")
    slice_layers = parse_slice_layers(text)
    example_layers = '[{"topology": "cloud.example.com/rack", "size": 4}]'
    if slice_layers is None:
        message = "must be a valid JSON array of topology and size"
        yield rules.invalid(item_path, text, message, f"use a value such as {example_layers}")
    elif not 1 <= len(slice_layers) <= SLICE_LAYERS_MAX:
        message = "topology constraints must contain between 1 and 3 entries"
        yield rules.invalid(item_path, text, message, f"use 1 to {SLICE_LAYERS_MAX} entries, one for each layer")
    else:
        yield from _slice_layer_errors(slice_layers, item_path, count)


def disabled_layers_errors(annotations: AnnotationMap, path: str) -> Iterator[FieldError]:
    """Report an annotation with layers of slices, for the feature gate TASMultiLayerTopology disabled."""
    if SLICE_LAYERS in annotations:
        message = f"the {well_known.TAS_MULTIPLE_LAYERS} feature gate must be enabled to use this annotation"
        remedy = f"enable the feature gate, or use {SLICE_TOPOLOGY} and {SLICE_SIZE}"
        yield rules.forbidden(f"{path}[{SLICE_LAYERS}]", message, remedy)


def _slice_layer_errors(slice_layers: Sequence[SliceLayer], path: str, count: int) -> Iterator[FieldError]:
    index_by_topology: dict[str, int] = {}
    for i, layer in enumerate(slice_layers):
        item_path, parent_size = f"{path}[{i}]", slice_layers[i - 1].size if i else None
        yield from rules.label_key_errors(layer.topology, f"{item_path}.topology")
        if layer.size < 1:
            yield rules.invalid(f"{item_path}.size", layer.size, "must be greater than or equal to 1", "use 1 or more")
        elif parent_size is not None and parent_size % layer.size:
            message = f"must evenly divide the parent layer size {parent_size}"
            yield rules.invalid(f"{item_path}.size", layer.size, message, f"use a divisor of {parent_size}")
        if layer.topology in index_by_topology:
            value = f"{layer.topology} (also at index {index_by_topology[layer.topology]})"
            yield rules.duplicate(f"{item_path}.topology", value, "use each level once")
        index_by_topology.setdefault(layer.topology, i)
    if slice_layers[0].size > count:
        message = f"must not be greater than pod set count {count}"
        yield rules.invalid(path, slice_layers[0].size, message, f"use a number from 1 to {count}")


def pod_set_group_errors(pod_sets: Sequence[PodSetTopology]) -> Iterator[FieldError]:
    """Report pod set groups that are not two pod sets of equal topology, at least one with a single pod."""
    pod_sets_by_group: dict[str, list[PodSetTopology]] = {}
    for pod_set in pod_sets:
        annotations = pod_set.annotations
        if POD_SET_GROUP in annotations and (REQUIRED_TOPOLOGY in annotations or PREFERRED_TOPOLOGY in annotations):
            pod_sets_by_group.setdefault(annotations[POD_SET_GROUP], []).append(pod_set)
    for name, members in pod_sets_by_group.items():
        if len(members) != 2:
            for member in members:
                message = f"can only define groups of exactly 2 pod sets, got: {len(members)} pod set(s)"
                yield rules.invalid(
                    f"{member.path}[{POD_SET_GROUP}]", name, message, "use a group in exactly two pod sets"
                )
        else:
            yield from _pair_errors(name, members[0], members[1])


def _pair_errors(name: str, first_pod_set: PodSetTopology, second_pod_set: PodSetTopology) -> Iterator[FieldError]:
    if first_pod_set.count != 1 and second_pod_set.count != 1:
        message = (
            "can only define groups where at least one pod set has only 1 replica, "
            f"got: {first_pod_set.count} replica(s) and {second_pod_set.count} replica(s) in the group"
        )
        for member in (first_pod_set, second_pod_set):
            yield rules.invalid(f"{member.path}[{POD_SET_GROUP}]", name, message, "set the count of one pod set to 1")
    mode_annotations = (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY)
    if any(first_pod_set.annotations.get(mode) != second_pod_set.annotations.get(mode) for mode in mode_annotations):
        for member, other in ((first_pod_set, second_pod_set), (second_pod_set, first_pod_set)):
            message = (
                f"must specify '{REQUIRED_TOPOLOGY}' or '{PREFERRED_TOPOLOGY}' topology"
                f" consistent with '{other.path}' in group '{name}'"
            )
            yield rules.invalid_without_value(member.path, message, "set the same topology annotation in both pod sets")


_LEVELS_PATH: Final = "spec.levels"


def topology_errors(topology: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Topology: unique and valid node labels as levels, with the host name only as the lowest level."""
    yield from rules.metadata_errors(topology)
    level_labels = _level_labels(topology)
    if len(dict.fromkeys(level_labels)) < len(level_labels):
        yield rules.schema_rule_fault(
            _LEVELS_PATH, "array", "must be unique", "list each node label once, from the widest level to the narrowest"
        )
    if well_known.HOSTNAME in level_labels[:-1]:
        message = f"the {well_known.HOSTNAME} label can only be used at the lowest level of topology"
        yield rules.schema_rule_fault(_LEVELS_PATH, "array", message, f"move {well_known.HOSTNAME} to the end")
    for i, label in enumerate(level_labels):
        yield from rules.label_key_errors(label, f"{_LEVELS_PATH}[{i}].nodeLabel")


def topology_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Topology: its levels may change only if the host name stays the lowest one."""
    yield from topology_errors(new)
    old_levels, new_levels, hostname_label = _level_labels(old), _level_labels(new), well_known.HOSTNAME
    if old_levels != new_levels and not (hostname_label in old_levels[-1:] and hostname_label in new_levels[-1:]):
        message = f"levels are mutable only when {hostname_label} is the lowest level both before and after the change"
        yield rules.schema_rule_fault(_LEVELS_PATH, "array", message, "keep the levels, or create another Topology")


def _level_labels(topology: Mapping[str, Any]) -> Sequence[str]:
    """Return the node labels of a Topology, from the widest level to the narrowest."""
    return [level["nodeLabel"] for level in (topology.get("spec") or {}).get("levels") or ()]


# Rules of topology assignments. Source: the rules in Kueue's Workload CRD.


_ONE_OF_TWO = "exactly one of the fields in [universal individual] must be set"


def assignment_errors(assignment: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Report a topology assignment without slices, and slices that lack level values or pod counts of their domains."""
    assignment_slices, levels = assignment.get("slices"), assignment.get("levels") or ()
    if assignment_slices is None:
        yield rules.required(f"{path}.slices", "", "add slices with the domains of the pods")
        return
    if any(len(each.get("valuesPerLevel") or ()) != len(levels) for each in assignment_slices):
        message = "valuesPerLevel must have the same length as the number of levels in this TopologyAssignment"
        yield rules.schema_rule_fault(path, "object", message, f"set {len(levels)} valuesPerLevel in each slice")
    for i, each in enumerate(assignment_slices):
        yield from _assignment_slice_errors(each, f"{path}.slices[{i}]")


def _assignment_slice_errors(assignment_slice: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    domain_count, pod_counts = assignment_slice["domainCount"], assignment_slice.get("podCounts") or {}
    if (pod_counts.get("universal") is None) == (pod_counts.get("individual") is None):
        yield rules.schema_rule_fault(f"{path}.podCounts", "object", _ONE_OF_TWO, "set either universal or individual")
    elif pod_counts.get("individual") is not None and len(pod_counts["individual"]) != domain_count:
        message = "podCounts.individual must have length equal to domainCount"
        yield rules.schema_rule_fault(path, "object", message, f"list {domain_count} counts in podCounts.individual")
    for j, values in enumerate(assignment_slice.get("valuesPerLevel") or ()):
        if (values.get("universal") is None) == (values.get("individual") is None):
            item_path = f"{path}.valuesPerLevel[{j}]"
            yield rules.schema_rule_fault(item_path, "object", _ONE_OF_TWO, "set either universal or individual")
        elif values.get("individual") is not None and len(values["individual"]["roots"]) != domain_count:
            message = (
                "valuesPerLevel.individual, if set, must have roots of length equal to domainCount of this "
                "TopologyAssignmentSlice"
            )
            yield rules.schema_rule_fault(path, "object", message, f"list {domain_count} roots in valuesPerLevel[{j}]")
