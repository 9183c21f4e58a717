"""Rules of Topologies, topology requests and assignments. Source: the rules in Kueue's CRD."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import LAYERS_MAX, Layer, boolean, layers, whole_number
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

# --- queued topology ---
#
# Rules of the topology annotations of a pod template.
#
# Source: Kueue's pkg/controller/jobframework/tas_validation.go at its default feature gates.


Annotations = Mapping[str, str]
_PREFIX: Final = "kueue.x-k8s.io/podset-"


@dataclass(frozen=True, slots=True)
class PodSetTopology:
    """The topology request of one pod set, and its path."""

    annotations: Annotations
    path: str
    count: int


def request_faults(annotations: Annotations, path: str, count: int, *, elastic: bool = False) -> Iterator[FieldError]:
    """Validate the topology annotations of one pod template, of which `count` pods are created."""
    if not any(name.startswith(_PREFIX) for name in annotations):
        return
    yield from _choice_faults(annotations, path)
    yield from _slice_faults(annotations, path, count)
    yield from _layers_faults(annotations, path, count)
    yield from _group_name_faults(annotations, path)
    for mode, name in (("required", REQUIRED_TOPOLOGY), ("preferred", PREFERRED_TOPOLOGY)):
        if elastic and name in annotations:
            message = f"{mode} topology is not supported with elastic jobs"
            yield rules.forbidden(
                f"{path}.{name}",
                message,
                f"use {UNCONSTRAINED_TOPOLOGY}, or drop the annotation elastic-job",
            )


def _choice_faults(annotations: Annotations, path: str) -> Iterator[FieldError]:
    """A pod set requests at most one of three modes."""
    modes = (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, UNCONSTRAINED_TOPOLOGY)
    if sum(mode in annotations for mode in modes) > 1:
        shown = ", ".join(map(rules.printed, modes))
        message = f"must not contain more than one topology annotation: [{shown}]"
        yield rules.invalid_here(path, message, "leave one of them")
    for name in (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, SLICE_TOPOLOGY):
        if name in annotations:
            yield from rules.label_key_faults(annotations[name], f"{path}[{name}]")
    value = annotations.get(UNCONSTRAINED_TOPOLOGY)
    if value is not None and boolean(value) is None:
        yield rules.invalid(
            f"{path}[{UNCONSTRAINED_TOPOLOGY}]", value, "must be a boolean value", 'give "true" or "false"'
        )


def _slice_faults(annotations: Annotations, path: str, count: int) -> Iterator[FieldError]:
    """A slice has a topology and a size, at most that of the pod set."""
    value, at = annotations.get(SLICE_SIZE), f"{path}[{SLICE_SIZE}]"
    if value is None:
        if SLICE_TOPOLOGY in annotations:
            yield rules.required(
                at, f"must be set when '{SLICE_TOPOLOGY}' is specified", "say how many pods a slice has"
            )
        return
    size = whole_number(value, bits=32)
    if size is None:
        yield rules.invalid(at, value, "must be a numeric value", f"give a number from 1 to {count}")
    elif size < 1:
        yield rules.invalid(at, value, "must be greater than or equal to 1", f"give a number from 1 to {count}")
    elif size > count:
        message = f"must not be greater than pod set count {count}"
        yield rules.invalid(at, value, message, f"give a number from 1 to {count}")
    if SLICE_TOPOLOGY not in annotations:
        yield rules.forbidden(
            at,
            f"may not be set when '{SLICE_TOPOLOGY}' is not specified",
            f"add {SLICE_TOPOLOGY}, or drop the size",
        )


def _group_name_faults(annotations: Annotations, path: str) -> Iterator[FieldError]:
    """The name of a group is not a number, and its pod sets have no slices."""
    group, at = annotations.get(POD_SET_GROUP), f"{path}[{POD_SET_GROUP}]"
    if group is None:
        return
    if group.isascii() and group.isdigit():
        yield rules.invalid(at, group, "must not be a number", "give the group a name")
    for name in (SLICE_SIZE, SLICE_TOPOLOGY, SLICE_LAYERS):
        if name in annotations:
            yield rules.forbidden(at, f"may not be set when '{name}' is specified", "drop one of the two")
    if PREFERRED_TOPOLOGY not in annotations and REQUIRED_TOPOLOGY not in annotations:
        message = f"may not be set when neither '{PREFERRED_TOPOLOGY}' nor '{REQUIRED_TOPOLOGY}' is specified"
        yield rules.forbidden(at, message, f"add {PREFERRED_TOPOLOGY} or {REQUIRED_TOPOLOGY}")


def _layers_faults(annotations: Annotations, path: str, count: int) -> Iterator[FieldError]:
    """Slice layers: one to three, with unique names, and each size a divisor of the one above."""
    text, at = annotations.get(SLICE_LAYERS), f"{path}[{SLICE_LAYERS}]"
    if text is None:
        return
    for name in (SLICE_TOPOLOGY, SLICE_SIZE):
        if name in annotations:
            yield rules.forbidden(at, f"may not be set when '{name}' is specified", "drop one of the two")
    listed = layers(text)
    example = '[{"topology": "cloud.example.com/rack", "size": 4}]'
    if listed is None:
        message = "must be a valid JSON array of topology and size"
        yield rules.invalid(at, text, message, f"write it as {example}")
    elif not 1 <= len(listed) <= LAYERS_MAX:
        message = "topology constraints must contain between 1 and 3 entries"
        yield rules.invalid(at, text, message, "give one entry for each layer of slices")
    else:
        yield from _layer_faults(listed, at, count)


def _layer_faults(listed: Sequence[Layer], path: str, count: int) -> Iterator[FieldError]:
    """Validate each layer, and each with the one above it."""
    seen: dict[str, int] = {}
    for i, layer in enumerate(listed):
        at, above = f"{path}[{i}]", listed[i - 1].size if i else None
        yield from rules.label_key_faults(layer.topology, f"{at}.topology")
        if layer.size < 1:
            yield rules.invalid(f"{at}.size", layer.size, "must be greater than or equal to 1", "give 1 or more")
        elif above is not None and above % layer.size:
            message = f"must evenly divide the parent layer size {above}"
            yield rules.invalid(f"{at}.size", layer.size, message, f"give a divisor of {above}")
        if layer.topology in seen:
            value = f"{layer.topology} (also at index {seen[layer.topology]})"
            yield rules.duplicate(f"{at}.topology", value, "name each level once")
        seen.setdefault(layer.topology, i)
    if listed[0].size > count:
        message = f"must not be greater than pod set count {count}"
        yield rules.invalid(path, listed[0].size, message, f"give a number from 1 to {count}")


def group_faults(pod_sets: Sequence[PodSetTopology]) -> Iterator[FieldError]:
    """A group has two pod sets, one of them with a single pod, which request the same topology."""
    groups: dict[str, list[PodSetTopology]] = {}
    for pod_set in pod_sets:
        if POD_SET_GROUP in pod_set.annotations and (
            REQUIRED_TOPOLOGY in pod_set.annotations or PREFERRED_TOPOLOGY in pod_set.annotations
        ):
            groups.setdefault(pod_set.annotations[POD_SET_GROUP], []).append(pod_set)
    for name, members in groups.items():
        if len(members) != 2:
            for member in members:
                message = f"can only define groups of exactly 2 pod sets, got: {len(members)} pod set(s)"
                yield rules.invalid(
                    f"{member.path}[{POD_SET_GROUP}]", name, message, "put exactly two pod sets in the group"
                )
        else:
            yield from _pair_faults(name, members[0], members[1])


def _pair_faults(name: str, first: PodSetTopology, second: PodSetTopology) -> Iterator[FieldError]:
    """Validate the two pod sets of a group together."""
    if first.count != 1 and second.count != 1:
        message = (
            "can only define groups where at least one pod set has only 1 replica, "
            f"got: {first.count} replica(s) and {second.count} replica(s) in the group"
        )
        for member in (first, second):
            yield rules.invalid(
                f"{member.path}[{POD_SET_GROUP}]", name, message, "let one of the two have a single pod"
            )
    if any(
        first.annotations.get(mode) != second.annotations.get(mode) for mode in (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY)
    ):
        for member, other in ((first, second), (second, first)):
            message = (
                f"must specify '{REQUIRED_TOPOLOGY}' or '{PREFERRED_TOPOLOGY}' topology"
                f" consistent with '{other.path}' in group '{name}'"
            )
            yield rules.invalid_here(member.path, message, "give both pod sets the same annotation")


_PATH: Final = "spec.levels"


def topology_faults(topology: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Topology."""
    yield from rules.metadata_faults(topology)
    levels = _levels(topology)
    if len(dict.fromkeys(levels)) < len(levels):
        yield rules.broken_rule(_PATH, "array", "must be unique", "name each node label once, from widest to narrowest")
    if well_known.HOSTNAME in levels[:-1]:
        message = f"the {well_known.HOSTNAME} label can only be used at the lowest level of topology"
        yield rules.broken_rule(_PATH, "array", message, f"put {well_known.HOSTNAME} last")
    for i, label in enumerate(levels):
        yield from rules.label_key_faults(label, f"{_PATH}[{i}].nodeLabel")


def topology_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Topology: levels change only above the hostname."""
    yield from topology_faults(new)
    before, after = _levels(old), _levels(new)
    if before != after and not (well_known.HOSTNAME in before[-1:] and well_known.HOSTNAME in after[-1:]):
        message = (
            f"levels are mutable only when {well_known.HOSTNAME} is the lowest level both before and after the change"
        )
        yield rules.broken_rule(_PATH, "array", message, "keep the levels, or make a new Topology")


def _levels(topology: Mapping[str, Any]) -> Sequence[str]:
    """Return the node labels of a Topology, from the widest level to the narrowest."""
    return [level["nodeLabel"] for level in (topology.get("spec") or {}).get("levels") or ()]


# --- topology assignment ---
#
# Rules of topology assignments. Source: the rules in Kueue's Workload CRD.


_ONE_OF_TWO = "exactly one of the fields in [universal individual] must be set"


def assignment_faults(assignment: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Every slice has, for each of its domains, the value of each level and the number of pods."""
    slices, levels = assignment.get("slices"), assignment.get("levels") or ()
    if slices is None:
        yield rules.required(f"{path}.slices", "", "give the domains of the pods, each with a value for every level")
        return
    if any(len(each.get("valuesPerLevel") or ()) != len(levels) for each in slices):
        message = "valuesPerLevel must have the same length as the number of levels in this TopologyAssignment"
        yield rules.broken_rule(path, "object", message, f"give values for the {len(levels)} levels")
    for i, each in enumerate(slices):
        yield from _topology_assignment_slice_faults(each, f"{path}.slices[{i}]")


def _topology_assignment_slice_faults(part: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Values and counts are universal, or individual for each domain."""
    count, pods = part["domainCount"], part.get("podCounts") or {}
    if (pods.get("universal") is None) == (pods.get("individual") is None):
        yield rules.broken_rule(f"{path}.podCounts", "object", _ONE_OF_TWO, "give one of universal and individual")
    elif pods.get("individual") is not None and len(pods["individual"]) != count:
        message = "podCounts.individual must have length equal to domainCount"
        yield rules.broken_rule(path, "object", message, f"give {count} counts")
    for j, values in enumerate(part.get("valuesPerLevel") or ()):
        if (values.get("universal") is None) == (values.get("individual") is None):
            at = f"{path}.valuesPerLevel[{j}]"
            yield rules.broken_rule(at, "object", _ONE_OF_TWO, "give one of universal and individual")
        elif values.get("individual") is not None and len(values["individual"]["roots"]) != count:
            message = (
                "valuesPerLevel.individual, if set, must have roots of length equal to domainCount of this "
                "TopologyAssignmentSlice"
            )
            yield rules.broken_rule(path, "object", message, f"give {count} roots")
