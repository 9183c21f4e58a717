"""Rules of Pods and pod templates that a batch platform depends on.

Source: Kubernetes's pkg/apis/core/validation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.schema import completed, meaning_of
from batchyard.api.validation import containers, metadata, names, networking, node_constraints, resources
from batchyard.api.validation import containers as security_contexts
from batchyard.api.validation import errors as faults
from batchyard.api.validation import volumes as pod_volumes

_RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")


def pod_faults(pod: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Pod."""
    yield from metadata.metadata_faults(pod)
    spec = pod.get("spec") or {}
    yield from _spec_faults(spec, "spec", ())
    if spec.get("nodeName") and spec.get("schedulingGates"):
        message = "cannot be set until all schedulingGates have been cleared"
        yield faults.forbidden("spec.nodeName", message, "drop the gates, or the node")


def pod_template_kind_faults(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a PodTemplate."""
    yield from metadata.metadata_faults(obj)
    yield from pod_template_faults(obj.get("template") or {}, "template")


def pod_template_faults(template: Mapping[str, Any], path: str, claims: Sequence[str] = ()) -> Iterator[FieldError]:
    """Validate a pod template within another object, which adds volumes for the named claims."""
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    yield from metadata.label_faults(meta.get("labels"), f"{path}.metadata.labels")
    yield from metadata.annotation_faults(meta.get("annotations"), f"{path}.metadata.annotations")
    yield from _spec_faults(spec, f"{path}.spec", claims)


def _spec_faults(spec: Mapping[str, Any], path: str, claims: Sequence[str]) -> Iterator[FieldError]:
    """Validate a pod's volumes, containers, resources and scheduling constraints."""
    volumes = dict.fromkeys([*(volume.get("name") or "" for volume in spec.get("volumes") or ()), *claims])
    yield from pod_volumes.volume_faults(spec.get("volumes") or (), f"{path}.volumes")
    yield from containers.containers_faults(spec, volumes, path)
    yield from resources.pod_resources_faults(spec.get("resources") or {}, f"{path}.resources")
    yield from resources.resources_faults({"limits": spec.get("overhead") or {}}, f"{path}.overhead")
    yield from metadata.label_faults(spec.get("nodeSelector"), f"{path}.nodeSelector")
    yield from node_constraints.affinity_faults(spec.get("affinity") or {}, f"{path}.affinity")
    yield from node_constraints.toleration_faults(spec.get("tolerations") or (), f"{path}.tolerations")
    constraints = spec.get("topologySpreadConstraints") or ()
    yield from node_constraints.spread_faults(constraints, f"{path}.topologySpreadConstraints")
    yield from _gate_faults(spec.get("schedulingGates") or (), f"{path}.schedulingGates")
    yield from networking.host_faults(spec, path)
    yield from security_contexts.pod_security_faults(spec.get("securityContext") or {}, f"{path}.securityContext")
    for i, gate in enumerate(spec.get("readinessGates") or ()):
        yield from metadata.label_key_faults(
            gate.get("conditionType") or "", f"{path}.readinessGates[{i}].conditionType"
        )
    yield from _scalar_faults(spec, path)


def _gate_faults(gates: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Scheduling gates are unique qualified names."""
    seen: dict[str, None] = {}
    for i, gate in enumerate(gates):
        name = gate.get("name") or ""
        yield from metadata.label_key_faults(name, f"{path}[{i}]")
        if name in seen:
            yield faults.duplicate(f"{path}[{i}]", name, "name each gate once")
        seen[name] = None


def _scalar_faults(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate single fields of a pod."""
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


# --- pod updates ---
#
# Rules of updates of Pods: most of the spec is immutable.
#
# Source: Kubernetes's pkg/apis/core/validation (ValidatePodUpdate).


Spec = Mapping[str, Any]

_MEANING: Final = meaning_of(scheme.POD)
_INT32_MAX: Final = 2**31 - 1
_KEPT: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_REMEDY: Final = "delete the Pod and recreate it"
#: Fields with separate rules.
_JUDGED: Final = ("containers", "initContainers", "activeDeadlineSeconds", "tolerations", "schedulingGates")


def pod_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Pod."""
    yield from pod_faults(new)
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    for field in ("containers", "initContainers"):
        if len(spec.get(field) or ()) != len(before.get(field) or ()):
            yield faults.forbidden(f"spec.{field}", "pod updates may not add or remove containers", _REMEDY)
            return
    yield from _deadline_faults(spec.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds"))
    yield from _toleration_faults(spec.get("tolerations") or (), before.get("tolerations") or ())
    yield from _pod_updates_gate_faults(spec.get("schedulingGates") or (), before.get("schedulingGates") or ())
    if not _MEANING.is_same("PodSpec", _rest(spec, before), _rest(before, before)):
        yield faults.forbidden("spec", _KEPT, _REMEDY)


def _deadline_faults(new: int | None, old: int | None) -> Iterator[FieldError]:
    """A deadline may be set or shortened."""
    path = "spec.activeDeadlineSeconds"
    if new is None:
        if old is not None:
            yield faults.invalid(path, new, "must not update from a positive integer to nil value", f"keep {old}")
    elif not 0 <= new <= _INT32_MAX:
        message = f"must be between 0 and {_INT32_MAX}, inclusive"
        yield faults.invalid(path, new, message, "give 0 or more seconds")
    elif old is not None and new > old:
        message = "must be less than or equal to previous value"
        yield faults.invalid(path, new, message, f"give at most {old}")


def _toleration_faults(new: Sequence[Spec], old: Sequence[Spec]) -> Iterator[FieldError]:
    """Tolerations may be added; of existing ones only the seconds of NoExecute may change."""
    for toleration in old:
        is_timed = toleration.get("effect") == "NoExecute"
        alike = (
            _MEANING.is_same("Toleration", each, toleration)
            or (is_timed and _MEANING.is_same("Toleration", _timeless(each), _timeless(toleration)))
            for each in new
        )
        if not any(alike):
            message = "existing toleration can not be modified except its tolerationSeconds"
            yield faults.forbidden("spec.tolerations", message, f"keep {faults.printed(toleration)}")


def _timeless(toleration: Spec) -> Spec:
    return {field: value for field, value in toleration.items() if field != "tolerationSeconds"}


def _pod_updates_gate_faults(new: Sequence[Spec], old: Sequence[Spec]) -> Iterator[FieldError]:
    """Scheduling gates may only be removed."""
    for i, gate in enumerate(new):
        if gate not in old:
            message = f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'"
            yield faults.forbidden(f"spec.schedulingGates[{i}].name", message, "drop it")


def _rest(spec: Spec, old: Spec) -> Spec:
    """Return the immutable part of a spec. Scheduling directives of a gated Pod may change."""
    hidden = _JUDGED if not old.get("schedulingGates") else (*_JUDGED, "nodeSelector", "affinity")
    spec = completed("PodSpec", spec)
    rest = {field: value for field, value in spec.items() if field not in hidden}
    for field in ("containers", "initContainers"):
        rest[field] = [{k: v for k, v in c.items() if k != "image"} for c in spec.get(field) or ()]
    if (old.get("terminationGracePeriodSeconds") or 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        rest["terminationGracePeriodSeconds"] = old["terminationGracePeriodSeconds"]
    return rest
