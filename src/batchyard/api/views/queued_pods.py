"""Pods in queues: their gates, groups and roles, as Kueue's labels and annotations on pods define them.

Pods of one role have equal requirements; a group has one pod set for each role. Source: pkg/controller/jobs/pod and
pkg/util/pod of Kueue.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api import meta, well_known
from batchyard.api.meta import Obj
from batchyard.api.views.pods import is_terminal

#: The value of the label and annotations that are switches.
ENABLED: Final = "true"
#: The gates that Kueue sets on pods in queues.
QUEUE_GATES: Final = (well_known.ADMISSION_GATE, well_known.TOPOLOGY_GATE)


def has_admission_gate(pod: Obj) -> bool:
    """Return whether a pod has the scheduling gate of pods that wait for their admission."""
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return any(gate["name"] == well_known.ADMISSION_GATE for gate in gates)


def is_suspended_pod(pod: Obj) -> bool:
    """Return whether a pod waits for its admission, or has ended."""
    return has_admission_gate(pod) or is_terminal(pod)


def group_name(pod: Obj) -> str:
    """Return the name of a pod's group, from the annotation, else from the label; '' if it is in no group."""
    name = well_known.POD_GROUP_NAME
    return meta.annotation(pod, name) or meta.label(pod, name) or ""


def group_count(pod: Obj) -> int | None:
    """Return the number of pods in a pod's group; None if the annotation is missing or invalid."""
    count = parse_group_count(meta.annotation(pod, well_known.POD_GROUP_COUNT) or "")
    return count if isinstance(count, int) else None


def parse_group_count(text: str) -> int | str:
    """Return the number of pods of a group, from the value of the annotation; the message of Kueue if it is invalid."""
    count = meta.parse_integer(text)
    if count is None:
        is_number = text.removeprefix("-").removeprefix("+").isdecimal() and text.isascii()
        return f"strconv.Atoi: parsing {json.dumps(text)}: {'value out of range' if is_number else 'invalid syntax'}"
    if count < 1:
        name = well_known.POD_GROUP_COUNT
        return f"incorrect annotation value '{name}={text}': group total count should be greater than zero"
    return count


def count_error(pod: Obj) -> str:
    """Return the message of Kueue about a pod's missing or invalid number of pods in its group; '' if it is valid."""
    text = meta.annotation(pod, well_known.POD_GROUP_COUNT)
    if text is None:
        return f"failed to extract '{well_known.POD_GROUP_COUNT}' annotation"
    count = parse_group_count(text)
    return count if isinstance(count, str) else ""


def has_fast_admission(pod: Obj) -> bool:
    """Return whether the group of a pod may be admitted before all of its pods exist."""
    return meta.annotation(pod, well_known.POD_GROUP_FAST_ADMISSION) == ENABLED


def is_serving(pod: Obj) -> bool:
    """Return whether a pod belongs to a group that serves: such a group never finishes."""
    return bool(group_name(pod)) and meta.annotation(pod, well_known.POD_GROUP_SERVING) == ENABLED


def is_unretriable(pod: Obj) -> bool:
    """Return whether the failed pods of a pod's group are not replaced."""
    return meta.annotation(pod, well_known.RETRIABLE_IN_GROUP) == "false"


def role_of(pod: Obj) -> str:
    """Return the role of a pod: the value of its annotation, or else computed from its spec."""
    role = meta.annotation(pod, well_known.ROLE_HASH)
    return role_hash(pod["spec"]) if role is None else role


# Role hashes equal those of Kueue: the first digits of the SHA-256 of JSON as Go's encoder writes it.

#: The fields of a type in Go's order, with the types of fields that have fields of their own.
_FieldOrder: TypeAlias = Mapping[str, Mapping[str, str]]
_FIELD_ORDER: Final[_FieldOrder] = {
    "Toleration": dict.fromkeys(("key", "operator", "value", "effect", "tolerationSeconds"), ""),
    "ContainerPort": dict.fromkeys(("name", "hostPort", "containerPort", "protocol", "hostIP"), ""),
    "ResourceClaim": dict.fromkeys(("name", "resourceClaimName", "resourceClaimTemplateName"), ""),
    "Requirement": dict.fromkeys(("key", "operator", "values"), ""),
    "LabelSelector": {"matchLabels": "", "matchExpressions": "Requirement"},
    "Spread": {
        **dict.fromkeys(("maxSkew", "topologyKey", "whenUnsatisfiable"), ""),
        "labelSelector": "LabelSelector",
        **dict.fromkeys(("minDomains", "nodeAffinityPolicy", "nodeTaintsPolicy", "matchLabelKeys"), ""),
    },
    "NodeTerm": {"matchExpressions": "Requirement", "matchFields": "Requirement"},
    "NodeSelector": {"nodeSelectorTerms": "NodeTerm"},
    "PreferredNodeTerm": {"weight": "", "preference": "NodeTerm"},
    "NodeAffinity": {well_known.REQUIRED: "NodeSelector", well_known.PREFERRED: "PreferredNodeTerm"},
    "PodTerm": {
        "labelSelector": "LabelSelector",
        **dict.fromkeys(("namespaces", "topologyKey"), ""),
        "namespaceSelector": "LabelSelector",
        **dict.fromkeys(("matchLabelKeys", "mismatchLabelKeys"), ""),
    },
    "PreferredPodTerm": {"weight": "", "podAffinityTerm": "PodTerm"},
    "PodAffinity": {well_known.REQUIRED: "PodTerm", well_known.PREFERRED: "PreferredPodTerm"},
    "Affinity": {"nodeAffinity": "NodeAffinity", "podAffinity": "PodAffinity", "podAntiAffinity": "PodAffinity"},
}
#: Characters that Go's encoder escapes in strings.
_GO_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
_ROLE_HASH_LENGTH: Final = 8


def role_hash(spec: Mapping[str, Any]) -> str:
    """Return the role of pods with a spec: a hash of the fields from which quota and nodes are chosen."""
    text = json.dumps({"spec": role_shape(spec)}, ensure_ascii=False, separators=(",", ":")).translate(_GO_ESCAPES)
    return hashlib.sha256(text.encode()).hexdigest()[:_ROLE_HASH_LENGTH]


def role_shape(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a pod's spec from which quota and nodes are chosen."""
    shape: dict[str, Any] = {
        "affinity": _ordered(spec.get("affinity"), "Affinity"),
        "containers": _container_shapes(spec.get("containers")),
        "initContainers": _container_shapes(spec.get("initContainers")),
        "nodeSelector": _sorted_map(spec.get("nodeSelector")),
        "overhead": _quantities(spec.get("overhead")),
        "priority": spec.get("priority"),
        "resourceClaims": _ordered(spec.get("resourceClaims"), "ResourceClaim") or None,
    }
    if spec.get("resources") is not None:
        shape["resources"] = _quantities(spec["resources"].get("requests"))
    return shape | {
        "runtimeClassName": spec.get("runtimeClassName"),
        "tolerations": _ordered(spec.get("tolerations"), "Toleration") or None,
        "topologySpreadConstraints": _ordered(spec.get("topologySpreadConstraints"), "Spread") or None,
    }


def _container_shapes(containers: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    return [
        {
            "ports": _ordered(container.get("ports"), "ContainerPort") or None,
            "resources": {"requests": _quantities((container.get("resources") or {}).get("requests"))},
        }
        for container in containers or ()
    ] or None


def _quantities(resources: Mapping[str, Any] | None) -> dict[str, str] | None:
    return {name: meta.canonical_quantity(value) for name, value in sorted((resources or {}).items())} or None


def _sorted_map(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return dict(sorted((values or {}).items())) or None


def _ordered(value: Any, type_name: str) -> Any:
    """Return a value of a type with its fields in Go's order, without empty ones; maps are sorted by key."""
    if isinstance(value, list | tuple):
        return [_ordered(each, type_name) for each in value]
    if not isinstance(value, Mapping):
        return value
    if type_name not in _FIELD_ORDER:
        return dict(sorted(value.items()))
    fields = {field: _ordered(value[field], kind) for field, kind in _FIELD_ORDER[type_name].items() if field in value}
    return {field: each for field, each in fields.items() if each not in (None, "", [], {}) or _keeps_empty(field)}


def _keeps_empty(field: str) -> bool:
    """Return whether Go's encoder writes an empty value of a field: selectors, and fields without `omitempty`."""
    return field in {"labelSelector", "namespaceSelector", "topologyKey", "nodeSelectorTerms", "key", "preference"}
