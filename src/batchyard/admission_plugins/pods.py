"""Admission plugins for new Pods: priority and default tolerations.

Each plugin is a pure function from Pod to Pod. Sources: Kubernetes's
plugin/pkg/admission/{priority,defaulttolerationseconds,extendedresourcetoleration}; their order is that of
pkg/kubeapiserver/options/plugins.go. Webhooks run after them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.defaults.kubernetes import pod_defaults
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import find_kind
from batchyard.api.validation.core import SYSTEM_CLASSES
from batchyard.api.validation.resources import is_extended

# --- forbidden ---
#
# The prefix of admission errors.


def forbidden(obj: Obj, *, is_named: bool = True) -> str:
    """Return the prefix of all admission errors of an object.

    Mutating plugins run before generateName is resolved, validating ones after; `is_named` selects the field that is
    shown.
    """
    metadata = obj["metadata"]
    info = find_kind(obj["apiVersion"], obj["kind"])
    plural = info.plural if info else f"{obj['kind'].lower()}s"  # custom plurals are unknown here
    group = obj["apiVersion"].rpartition("/")[0]
    resource = f"{plural}.{group}" if group else plural
    name, prefix = metadata.get("name"), metadata.get("generateName")
    return f'{resource} "{(name or prefix if is_named else prefix or name) or "Unknown"}" is forbidden'


#: Looks up an object; None if it does not exist.
Find: TypeAlias = Callable[[Key], Obj | None]
Toleration: TypeAlias = Mapping[str, Any]

#: Default time in seconds that a pod stays on a lost node.
TOLERATION_SECONDS: Final = 300
_NO_EXECUTE: Final = "NoExecute"
_LOST: Final = (well_known.NOT_READY, well_known.UNREACHABLE)
_STAYING: Final[Mapping[str, Toleration]] = {
    key: {"key": key, "operator": "Exists", "effect": _NO_EXECUTE, "tolerationSeconds": TOLERATION_SECONDS}
    for key in _LOST
}
_PREEMPT: Final = "PreemptLowerPriority"


def admit_pod(pod: Obj, find: Find, default: Obj | None) -> dict[str, Any]:
    """Return a new Pod with defaults and the changes of all plugins. Raises Forbidden if a plugin rejects it.

    `default` is the global default PriorityClass.
    """
    done = priority(pod_defaults(pod), find, default)
    done = extended_resource_toleration(default_toleration_seconds(done))
    return done if isinstance(done, dict) else dict(done)


def default_class(classes: Iterable[Obj]) -> Obj | None:
    """Return the global default PriorityClass: the one with the lowest value of those with globalDefault."""
    defaults = (found for found in classes if found.get("globalDefault"))
    return min(defaults, key=lambda found: (found["value"], found["metadata"]["name"]), default=None)


def priority(pod: Obj, find: Find, default: Obj | None) -> Obj:
    """Return the Pod with the priority and preemption policy of its class or of the default class."""
    spec = pod["spec"]
    name, value, policy = _class_of(pod, find, default)
    fields = {"priority": value, "preemptionPolicy": policy} | ({"priorityClassName": name} if name else {})
    if all(spec.get(field) == wanted for field, wanted in fields.items()):
        return pod
    if spec.get("priority") not in (None, value):
        raise _refused(pod, "integer value of priority", spec["priority"], value)
    if spec.get("preemptionPolicy") not in (None, policy):
        raise _refused(pod, "string value of PreemptionPolicy", spec["preemptionPolicy"], policy)
    return {**pod, "spec": {**spec, **fields}}


def default_toleration_seconds(pod: Obj) -> Obj:
    """Add tolerations for nodes that are not ready or unreachable, unless the Pod has its own."""
    given = pod["spec"].get("tolerations") or ()
    missing = [key for key in _LOST if not any(_speaks_of(toleration, key) for toleration in given)]
    return _tolerating(pod, [_STAYING[key] for key in missing])


def extended_resource_toleration(pod: Obj) -> Obj:
    """Add tolerations for the extended resources that the Pod requests; the taint keys are the resource names."""
    spec = pod["spec"]
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    requested = {
        name: None for each in containers for name in (each.get("resources") or {}).get("requests") or () if "/" in name
    }
    devices = sorted(name for name in requested if is_extended(name))
    return _tolerating(pod, [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in devices])


def _class_of(pod: Obj, find: Find, default: Obj | None) -> tuple[str, int, str]:
    """Return the name, value and preemption policy of a Pod's class; '' as name without a class and a default."""
    name = pod["spec"].get("priorityClassName") or ""
    found = find(Key(scheme.PRIORITY_CLASS, "", name)) if name else default
    if found is not None:
        return found["metadata"]["name"], found.get("value", 0), found.get("preemptionPolicy") or _PREEMPT
    if not name:
        return "", 0, _PREEMPT
    if name not in SYSTEM_CLASSES:
        raise Forbidden(f"{forbidden(pod)}: no PriorityClass with name {name} was found")
    return name, SYSTEM_CLASSES[name], _PREEMPT


def _refused(pod: Obj, what: str, given: object, computed: object) -> Forbidden:
    """Return the error of a Pod whose own priority or policy differs from that of its class."""
    return Forbidden(
        f"{forbidden(pod)}: the {what} ({given}) must not be provided in pod spec; "
        f"priority admission controller computed {computed} from the given PriorityClass name"
    )


def _speaks_of(toleration: Toleration, key: str) -> bool:
    """Report whether a toleration covers NoExecute taints of a key, regardless of the value."""
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", _NO_EXECUTE)


def _tolerating(pod: Obj, added: Sequence[Toleration]) -> Obj:
    """Add tolerations to the Pod; each replaces one that differs only in its seconds."""
    if not added:
        return pod
    tolerations = list(pod["spec"].get("tolerations") or ())
    places = {_identity(each): i for i, each in enumerate(tolerations)}
    for toleration in added:
        at = places.get(_identity(toleration))
        if at is None:
            tolerations.append(toleration)
        else:
            tolerations[at] = toleration
    return {**pod, "spec": {**pod["spec"], "tolerations": tolerations}}


def _identity(toleration: Toleration) -> tuple[str, ...]:
    get = toleration.get
    return get("key") or "", get("operator") or "", get("value") or "", get("effect") or ""


# --- priority classes ---
#
# The validating part of the Priority plugin: at most one PriorityClass is the global default.
#
# Source: Kubernetes's plugin/pkg/admission/priority.


def check_default(priority_class: Obj, default: Obj | None) -> None:
    """Raise Forbidden if a new or changed class sets globalDefault while another class is the default."""
    if not priority_class.get("globalDefault") or default is None:
        return
    name = default["metadata"]["name"]
    if name != priority_class["metadata"]["name"]:
        message = f"PriorityClass {name} is already marked as default. Only one default can exist"
        raise Forbidden(f"{forbidden(priority_class)}: {message}")
