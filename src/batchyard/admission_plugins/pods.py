"""What the admission plugins make of a new Pod: its priority, and what it tolerates though it does not say so.

Each plugin is a function of its name from a Pod to the next; the Pod given is not changed. Sources: Kubernetes's
plugin/pkg/admission/{priority,defaulttolerationseconds,extendedresourcetoleration}; their order is that of
pkg/kubeapiserver/options/plugins.go. Webhooks come after them.
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
# How the API server says that it refuses a new object.


def forbidden(obj: Obj, *, is_named: bool = True) -> str:
    """How all refusals of a new object begin; it may have no name yet.

    What changes objects comes before those that ask for a name are named (`is_named`), what only checks them after.
    """
    metadata = obj["metadata"]
    info = find_kind(obj["apiVersion"], obj["kind"])
    plural = info.plural if info else f"{obj['kind'].lower()}s"  # of kinds that users define only they know it
    group = obj["apiVersion"].rpartition("/")[0]
    resource = f"{plural}.{group}" if group else plural
    name, prefix = metadata.get("name"), metadata.get("generateName")
    return f'{resource} "{(name or prefix if is_named else prefix or name) or "Unknown"}" is forbidden'


#: Looks an object up; None where there is none.
Find: TypeAlias = Callable[[Key], Obj | None]
Toleration: TypeAlias = Mapping[str, Any]

#: How long a pod stays on a node that is lost, unless it says otherwise.
TOLERATION_SECONDS: Final = 300
_NO_EXECUTE: Final = "NoExecute"
_LOST: Final = (well_known.NOT_READY, well_known.UNREACHABLE)
_STAYING: Final[Mapping[str, Toleration]] = {
    key: {"key": key, "operator": "Exists", "effect": _NO_EXECUTE, "tolerationSeconds": TOLERATION_SECONDS}
    for key in _LOST
}
_PREEMPT: Final = "PreemptLowerPriority"


def admit_pod(pod: Obj, find: Find, default: Obj | None) -> dict[str, Any]:
    """A new Pod with its defaults and what the plugins add; Forbidden where one of them refuses it.

    `default` is the PriorityClass of all that name none.
    """
    done = priority(pod_defaults(pod), find, default)
    done = extended_resource_toleration(default_toleration_seconds(done))
    return done if isinstance(done, dict) else dict(done)


def default_class(classes: Iterable[Obj]) -> Obj | None:
    """The PriorityClass of all that name none: that of the lowest value of those with globalDefault."""
    defaults = (found for found in classes if found.get("globalDefault"))
    return min(defaults, key=lambda found: (found["value"], found["metadata"]["name"]), default=None)


def priority(pod: Obj, find: Find, default: Obj | None) -> Obj:
    """The Pod with the priority and preemption policy of its class, or of the class of all that name none."""
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
    """The Pod, which stays for a while on a node that is not ready or unreachable if it says nothing of such nodes."""
    given = pod["spec"].get("tolerations") or ()
    missing = [key for key in _LOST if not any(_speaks_of(toleration, key) for toleration in given)]
    return _tolerating(pod, [_STAYING[key] for key in missing])


def extended_resource_toleration(pod: Obj) -> Obj:
    """The Pod, which tolerates the taints of nodes with devices that it requests: their keys are the devices' names."""
    spec = pod["spec"]
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    requested = {
        name: None for each in containers for name in (each.get("resources") or {}).get("requests") or () if "/" in name
    }
    devices = sorted(name for name in requested if is_extended(name))
    return _tolerating(pod, [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in devices])


def _class_of(pod: Obj, find: Find, default: Obj | None) -> tuple[str, int, str]:
    """The name, value and preemption policy of a Pod's class; no name where there is none and no default either."""
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
    """The error of a Pod that says itself what only its class may say."""
    return Forbidden(
        f"{forbidden(pod)}: the {what} ({given}) must not be provided in pod spec; "
        f"priority admission controller computed {computed} from the given PriorityClass name"
    )


def _speaks_of(toleration: Toleration, key: str) -> bool:
    """Whether a toleration covers NoExecute taints of a key, whatever their value."""
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", _NO_EXECUTE)


def _tolerating(pod: Obj, added: Sequence[Toleration]) -> Obj:
    """The Pod with these tolerations, each once, in the place of one that is the same but for its seconds."""
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
# What the API server asks of PriorityClasses: one of them at most is that of all who name none.
#
# Source: Kubernetes's plugin/pkg/admission/priority.


def check_default(priority_class: Obj, default: Obj | None) -> None:
    """Raise Forbidden if a class that is new or changed wants to be the default beside another one."""
    if not priority_class.get("globalDefault") or default is None:
        return
    name = default["metadata"]["name"]
    if name != priority_class["metadata"]["name"]:
        told = f"PriorityClass {name} is already marked as default. Only one default can exist"
        raise Forbidden(f"{forbidden(priority_class)}: {told}")
