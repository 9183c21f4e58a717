"""Pod sets: injects the scheduling directives of an admission into pod templates, and restores the originals.

Templates are plain mappings and are never changed in place. Source: pkg/podset/podset.go of Kueue, and
getPodSetsInfoFromStatus in its pkg/controller/jobframework/reconciler.go.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.annotations import LAYERS_MAX, boolean, layers, whole_number
from batchyard.api.meta import Obj, with_path
from batchyard.api.schema import meaning_of
from batchyard.api.well_known import (
    POD_SET_GROUP,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    SLICE_LAYERS,
    SLICE_SIZE,
    SLICE_TOPOLOGY,
    UNCONSTRAINED_TOPOLOGY,
)
from batchyard.scheduling.workload.lifecycle import admission_of, cluster_queue_of

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NONE: Final[Mapping[str, str]] = {}

Template = Mapping[str, Any]
FindFlavor = Callable[[str], Obj | None]


class InvalidPodSetInfo(Exception):  # noqa: N818 - named like the reasons of Kubernetes
    """The directives of an admission conflict with the pod template; a retry does not help."""


@dataclass(frozen=True, slots=True)
class PodSetInfo:
    """The scheduling directives for the pod template of one pod set, and its pod count."""

    name: str
    count: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    scheduling_gates: Sequence[Mapping[str, Any]] = ()


# --- from a Workload ---


def admitted_injections(workload: Obj, find_flavor: FindFlavor) -> list[PodSetInfo] | None:
    """Return the directives of an admitted Workload by pod set; None while one of its flavors is missing.

    Raises InvalidInjection if its checks conflict with its flavors or with each other.
    """
    assignments = admission_of(workload).get("podSetAssignments") or ()
    injections = []
    for assignment, pod_set in zip(assignments, workload["spec"]["podSets"], strict=False):
        injection = flavor_injection(assignment, pod_set, find_flavor)
        if injection is None:
            return None
        labels = {well_known.POD_SET: assignment["name"], **_queue_labels(workload)}
        injection = replace(injection, labels=labels, annotations={well_known.WORKLOAD: workload["metadata"]["name"]})
        injections.append(_with_check_updates(injection, workload))
    return injections


def flavor_injection(
    assignment: Mapping[str, Any], pod_set: Mapping[str, Any], find_flavor: FindFlavor
) -> PodSetInfo | None:
    """Return the directives of the flavors assigned to a pod set; None while one of them is missing."""
    flavors = [find_flavor(name) for name in _flavor_names(assignment)]
    if None in flavors:
        return None
    return _from_flavors(assignment, pod_set, [flavor for flavor in flavors if flavor is not None])


def original_injections(workload: Obj) -> list[PodSetInfo]:
    """Return the values of the templates from which the Workload was created."""
    return [_original(pod_set) for pod_set in workload["spec"]["podSets"]]


def _flavor_names(assignment: Mapping[str, Any]) -> list[str]:
    """Return each flavor once, in the order of the resource names, so that labels merge deterministically."""
    return list(dict.fromkeys(flavor for _, flavor in sorted((assignment.get("flavors") or _NONE).items())))


def _from_flavors(assignment: Mapping[str, Any], pod_set: Mapping[str, Any], flavors: Iterable[Obj]) -> PodSetInfo:
    node_selector: dict[str, str] = {}
    tolerations: list[Mapping[str, Any]] = []
    for flavor in flavors:
        spec = flavor.get("spec") or {}
        node_selector.update(spec.get("nodeLabels") or _NONE)
        tolerations += spec.get("tolerations") or ()
    count = assignment.get("count", pod_set["count"])
    return PodSetInfo(assignment["name"], count, node_selector=node_selector, tolerations=tolerations)


def _queue_labels(workload: Obj) -> dict[str, str]:
    labels = {well_known.LOCAL_QUEUE: workload["spec"].get("queueName", "")}
    cluster_queue = cluster_queue_of(workload)
    if _DNS_LABEL.fullmatch(cluster_queue):
        labels[well_known.CLUSTER_QUEUE] = cluster_queue
    return labels


def _with_check_updates(injection: PodSetInfo, workload: Obj) -> PodSetInfo:
    for check in workload["status"].get("admissionChecks") or ():
        for update in check.get("podSetUpdates") or ():
            if update["name"] == injection.name:
                injection = _merged(injection, _from_update(update), f'in admission check "{check["name"]}": ')
                break
    return injection


def _from_update(update: Mapping[str, Any]) -> PodSetInfo:
    return PodSetInfo(
        update["name"],
        0,
        labels=update.get("labels") or _NONE,
        annotations=update.get("annotations") or _NONE,
        node_selector=update.get("nodeSelector") or _NONE,
        tolerations=update.get("tolerations") or (),
    )


def _original(pod_set: Mapping[str, Any]) -> PodSetInfo:
    return _of_template(pod_set["name"], pod_set["count"], pod_set.get("template") or {})


def _of_template(name: str, count: int, template: Template) -> PodSetInfo:
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    return PodSetInfo(
        name,
        count,
        labels=metadata.get("labels") or _NONE,
        annotations=metadata.get("annotations") or _NONE,
        node_selector=spec.get("nodeSelector") or _NONE,
        tolerations=spec.get("tolerations") or (),
        scheduling_gates=spec.get("schedulingGates") or (),
    )


# --- into a template ---


def inject(template: Template, injection: PodSetInfo) -> dict[str, Any]:
    """Return the template with the injection added. Raise InvalidInjection if they conflict."""
    return restore(template, _merged(_of_template("", 0, template), injection))


def restore(template: Template, injection: PodSetInfo) -> dict[str, Any]:
    """Return the template with exactly the fields of the injection."""
    fields = (
        (("metadata", "labels"), injection.labels),
        (("metadata", "annotations"), injection.annotations),
        (("spec", "nodeSelector"), injection.node_selector),
        (("spec", "tolerations"), injection.tolerations),
        (("spec", "schedulingGates"), injection.scheduling_gates),
    )
    for path, value in fields:
        if ((template.get(path[0]) or {}).get(path[1]) or None) != (value or None):
            template = with_path(template, path, value or None)
    return {part: value for part, value in template.items() if value or part != "metadata"}


def _merged(base: PodSetInfo, added: PodSetInfo, where: str = "") -> PodSetInfo:
    prefix = f"{where}invalid admission check PodSetUpdate: conflict for"
    return replace(
        base,
        labels=_merged_map(f"{prefix} labels", base.labels, added.labels),
        annotations=_merged_map(f"{prefix} annotations", base.annotations, added.annotations),
        node_selector=_merged_map(f"{prefix} nodeSelector", base.node_selector, added.node_selector),
        tolerations=_merged_list(base.tolerations, added.tolerations),
        scheduling_gates=_merged_list(base.scheduling_gates, added.scheduling_gates),
    )


def _merged_map(fault: str, base: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    for key in sorted(base.keys() & added.keys()):
        if base[key] != added[key]:
            raise InvalidPodSetInfo(f"{fault}: conflict for key={key}, value1={base[key]}, value2={added[key]}")
    return {**base, **added}


def _merged_list(base: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    merged = list(base)
    merged += [item for item in added if item not in merged]
    return merged


# --- comparing ---


def equivalent(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], ignore_tolerations: bool
) -> bool:
    """Report whether pod sets have equal counts, containers and, unless ignored, tolerations."""
    return len(ours) == len(theirs) and all(
        _are_alike(a, b, ignore_tolerations) for a, b in zip(ours, theirs, strict=True)
    )


def _are_alike(one: Mapping[str, Any], other: Mapping[str, Any], ignore_tolerations: bool) -> bool:
    if (one["count"], one.get("minCount")) != (other["count"], other.get("minCount")):
        return False
    return meaning_of(scheme.JOB).is_same(
        "PodSpec", _compared(one, ignore_tolerations), _compared(other, ignore_tolerations)
    )


def _compared(pod_set: Mapping[str, Any], ignore_tolerations: bool) -> Mapping[str, Any]:
    """Return the compared part of a pod spec."""
    spec = (pod_set.get("template") or {}).get("spec") or {}
    fields = ("containers", "initContainers") if ignore_tolerations else ("containers", "initContainers", "tolerations")
    return {field: spec[field] for field in fields if spec.get(field)}


# --- from a job ---


def without_duplicate_env(template: Template) -> Template:
    """Return the template without duplicate environment variables: the last value, at the first position."""
    for kind in ("containers", "initContainers"):
        containers = (template.get("spec") or {}).get(kind) or ()
        cleaned = [_without_duplicate_env(container) for container in containers]
        if any(new is not old for new, old in zip(cleaned, containers, strict=True)):
            template = with_path(template, ("spec", kind), cleaned)
    return template


def _without_duplicate_env(container: Mapping[str, Any]) -> Mapping[str, Any]:
    variables = container.get("env") or ()
    last = {variable["name"]: variable for variable in variables}
    return container if len(last) == len(variables) else {**container, "env": list(last.values())}


# --- topology ---
#
# The topology request of a pod set, from the annotations of its pod template.
#
# Source: pkg/controller/jobframework/tas.go of Kueue. Invalid annotations are rejected when a job is created; here they
# are ignored.


def topology_request(template: Mapping[str, Any], **indices: Any) -> dict[str, Any]:
    """Return the topology request of a template, with the labels that number its pods (`indices`)."""
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
