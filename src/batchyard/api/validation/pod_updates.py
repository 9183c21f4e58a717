"""Rules of changed Pods: once a Pod is there, little of what it is changes.

Source: Kubernetes's pkg/apis/core/validation (ValidatePodUpdate).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.schema import completed, meaning_of
from batchyard.api.validation import faults
from batchyard.api.validation.pods import pod_faults

Spec = Mapping[str, Any]

_MEANING: Final = meaning_of(scheme.POD)
_INT32_MAX: Final = 2**31 - 1
_KEPT: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_REMEDY: Final = "delete the Pod and create it anew"
#: What has rules of its own.
_JUDGED: Final = ("containers", "initContainers", "activeDeadlineSeconds", "tolerations", "schedulingGates")


def pod_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed Pod."""
    yield from pod_faults(new)
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    for field in ("containers", "initContainers"):
        if len(spec.get(field) or ()) != len(before.get(field) or ()):
            yield faults.forbidden(f"spec.{field}", "pod updates may not add or remove containers", _REMEDY)
            return
    yield from _deadline_faults(spec.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds"))
    yield from _toleration_faults(spec.get("tolerations") or (), before.get("tolerations") or ())
    yield from _gate_faults(spec.get("schedulingGates") or (), before.get("schedulingGates") or ())
    if not _MEANING.is_same("PodSpec", _rest(spec, before), _rest(before, before)):
        yield faults.forbidden("spec", _KEPT, _REMEDY)


def _deadline_faults(new: int | None, old: int | None) -> Iterator[FieldError]:
    """A deadline is set, or brought forward."""
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
    """Tolerations are added; of those there are only the seconds change, if they are about NoExecute."""
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


def _gate_faults(new: Sequence[Spec], old: Sequence[Spec]) -> Iterator[FieldError]:
    """Gates are only taken away."""
    for i, gate in enumerate(new):
        if gate not in old:
            message = f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'"
            yield faults.forbidden(f"spec.schedulingGates[{i}].name", message, "drop it")


def _rest(spec: Spec, old: Spec) -> Spec:
    """A spec without what may change. While it is gated, a Pod may still be told where to go."""
    hidden = _JUDGED if not old.get("schedulingGates") else (*_JUDGED, "nodeSelector", "affinity")
    spec = completed("PodSpec", spec)
    rest = {field: value for field, value in spec.items() if field not in hidden}
    for field in ("containers", "initContainers"):
        rest[field] = [{k: v for k, v in c.items() if k != "image"} for c in spec.get(field) or ()]
    if (old.get("terminationGracePeriodSeconds") or 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        rest["terminationGracePeriodSeconds"] = old["terminationGracePeriodSeconds"]
    return rest
