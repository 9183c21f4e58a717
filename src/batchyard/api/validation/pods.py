"""Rules of Pods and their templates, as far as a batch platform depends on them.

Source: Kubernetes's pkg/apis/core/validation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import (
    affinity,
    containers,
    faults,
    metadata,
    names,
    pod_network,
    pod_volumes,
    resources,
    security_contexts,
    tolerations,
)

_RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")


def pod_faults(pod: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Pod."""
    yield from metadata.metadata_faults(pod)
    spec = pod.get("spec") or {}
    yield from _spec_faults(spec, "spec", ())
    if spec.get("nodeName") and spec.get("schedulingGates"):
        message = "cannot be set until all schedulingGates have been cleared"
        yield faults.forbidden("spec.nodeName", message, "drop the gates, or the node")


def pod_template_kind_faults(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a PodTemplate."""
    yield from metadata.metadata_faults(obj)
    yield from pod_template_faults(obj.get("template") or {}, "template")


def pod_template_faults(template: Mapping[str, Any], path: str, claims: Sequence[str] = ()) -> Iterator[FieldError]:
    """All rules of a pod template within another object, which adds volumes for the claims named."""
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    yield from metadata.label_faults(meta.get("labels"), f"{path}.metadata.labels")
    yield from metadata.annotation_faults(meta.get("annotations"), f"{path}.metadata.annotations")
    yield from _spec_faults(spec, f"{path}.spec", claims)


def _spec_faults(spec: Mapping[str, Any], path: str, claims: Sequence[str]) -> Iterator[FieldError]:
    """What runs, with what, and where it may run."""
    volumes = dict.fromkeys([*(volume.get("name") or "" for volume in spec.get("volumes") or ()), *claims])
    yield from pod_volumes.volume_faults(spec.get("volumes") or (), f"{path}.volumes")
    yield from containers.containers_faults(spec, volumes, path)
    yield from resources.pod_resources_faults(spec.get("resources") or {}, f"{path}.resources")
    yield from resources.resources_faults({"limits": spec.get("overhead") or {}}, f"{path}.overhead")
    yield from metadata.label_faults(spec.get("nodeSelector"), f"{path}.nodeSelector")
    yield from affinity.affinity_faults(spec.get("affinity") or {}, f"{path}.affinity")
    yield from tolerations.toleration_faults(spec.get("tolerations") or (), f"{path}.tolerations")
    constraints = spec.get("topologySpreadConstraints") or ()
    yield from affinity.spread_faults(constraints, f"{path}.topologySpreadConstraints")
    yield from _gate_faults(spec.get("schedulingGates") or (), f"{path}.schedulingGates")
    yield from pod_network.host_faults(spec, path)
    yield from security_contexts.pod_security_faults(spec.get("securityContext") or {}, f"{path}.securityContext")
    for i, gate in enumerate(spec.get("readinessGates") or ()):
        yield from metadata.label_key_faults(
            gate.get("conditionType") or "", f"{path}.readinessGates[{i}].conditionType"
        )
    yield from _scalar_faults(spec, path)


def _gate_faults(gates: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Scheduling gates are qualified names, each there once."""
    seen: dict[str, None] = {}
    for i, gate in enumerate(gates):
        name = gate.get("name") or ""
        yield from metadata.label_key_faults(name, f"{path}[{i}]")
        if name in seen:
            yield faults.duplicate(f"{path}[{i}]", name, "name each gate once")
        seen[name] = None


def _scalar_faults(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Single fields of a pod."""
    policy = spec.get("restartPolicy")
    if policy and policy not in _RESTART_POLICIES:
        yield faults.unsupported(f"{path}.restartPolicy", policy, _RESTART_POLICIES)
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        message = "must be between 1 and 2147483647, inclusive"
        yield faults.invalid(f"{path}.activeDeadlineSeconds", deadline, message, "give 1 or more seconds")
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and grace < 0:
        yield faults.invalid(f"{path}.terminationGracePeriodSeconds", grace, faults.NEGATIVE, "give 0 or more seconds")
    for field, rule in (
        ("hostname", names.dns_label),
        ("subdomain", names.dns_label),
        ("priorityClassName", names.dns_subdomain),
        ("serviceAccountName", names.dns_subdomain),
        ("nodeName", names.dns_subdomain),
        ("runtimeClassName", names.dns_subdomain),
    ):
        for message in rule(spec[field]) if spec.get(field) else ():
            yield faults.invalid(f"{path}.{field}", spec[field], message, "use lower case letters, digits and '-'")
