"""Usage of an object in the resources that a ResourceQuota can limit, and the scopes of a quota.

Sources: Kubernetes's pkg/quota/v1/evaluator/core, k8s.io/apiserver pkg/quota/v1/generic. Amounts are in billionths.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.quantity import NANO, QuantityFormat, format_of, parse
from batchyard.api.selectors import Requirement
from batchyard.api.validation.resources import is_extended
from batchyard.api.views.pod import container_limits, container_requests, pod_total

Usage: TypeAlias = Mapping[str, int]

COUNT: Final = "count/"
_POD_COUNT: Final = "count/pods"
_REQUESTS: Final = "requests."
_LIMITS: Final = "limits."
_HUGE_PAGES: Final = "hugepages-"
#: Resources that pods request under both the bare name and the name with `requests.`.
_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")
_OF_PODS: Final = frozenset(
    {_POD_COUNT, "pods", *_COMPUTE, *(f"{prefix}{name}" for name in _COMPUTE for prefix in (_REQUESTS, _LIMITS))}
)
_OF_SERVICES: Final = frozenset({"count/services", "services", "services.nodeports", "services.loadbalancers"})
#: Kinds that are also counted under their bare names.
_ALIASES: Final = {
    "configmaps": scheme.CONFIG_MAP,
    "resourcequotas": scheme.RESOURCE_QUOTA,
    "secrets": scheme.SECRET,
}
_ALIAS_OF: Final = {kind: name for name, kind in _ALIASES.items()}
#: Resources that do not exist here, so their usage is zero.
_ABSENT: Final = frozenset(
    {"persistentvolumeclaims", "count/persistentvolumeclaims", "requests.storage", "replicationcontrollers"}
)
_OF_STORAGE_CLASSES: Final = ".storageclass.storage.k8s.io/"
#: Resources that every container must specify if a quota limits them.
_MUST_BE_SPECIFIED: Final = ("cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory")
_TERMINAL: Final = frozenset({"Succeeded", "Failed"})


def count_names(info: scheme.ServedKind) -> tuple[str, ...]:
    """Return the names under which the objects of a kind are counted."""
    name = f"{COUNT}{info.plural}.{info.group}" if info.group else f"{COUNT}{info.plural}"
    alias = _ALIAS_OF.get(info.constant)
    return (name,) if alias is None else (name, alias)


def kind_of_resource(name: str) -> str | None:
    """Return the kind that uses a limited resource; '' if none does, None if it is unknown."""
    if name in _OF_PODS or name.startswith((_HUGE_PAGES, f"{_REQUESTS}{_HUGE_PAGES}")) or _is_device(name):
        return scheme.POD
    if name in _OF_SERVICES:
        return scheme.SERVICE
    if name in _ABSENT or _OF_STORAGE_CLASSES in name:
        return ""
    return _ALIASES.get(name) or _COUNTED.get(name)


_COUNTED: Final = {count_names(info)[0]: info.constant for info in scheme.KINDS if info.namespaced}


def _is_device(name: str) -> bool:
    """Report whether a limit is on requests of a device."""
    return name.startswith(_REQUESTS) and "/" in name and "kubernetes.io/" not in name


def usage(obj: Obj, kind: str, counted_as: Sequence[str]) -> Usage:
    """Return the usage of an object; most kinds use only their own count."""
    if kind == scheme.POD:
        return _usage_of_pod(obj)
    return _usage_of_service(obj["spec"]) if kind == scheme.SERVICE else dict.fromkeys(counted_as, NANO)


def left_of_late(used: Usage) -> Usage:
    """Return the remaining usage of a pod past its grace period: only its object count."""
    return {_POD_COUNT: used[_POD_COUNT]} if _POD_COUNT in used else {}


def _usage_of_pod(pod: Obj) -> Usage:
    used = {_POD_COUNT: NANO}
    if (pod.get("status") or {}).get("phase") in _TERMINAL:
        return used
    used["pods"] = NANO
    spec = pod["spec"]
    requests, limits = pod_total(spec, container_requests), pod_total(spec, container_limits)
    for name, text in (spec.get("overhead") or {}).items():
        requests[name] = requests.get(name, 0) + parse(text)
        if name in limits:
            limits[name] += parse(text)
    return used | _compute(requests, limits)


def _compute(requests: Mapping[str, int], limits: Mapping[str, int]) -> dict[str, int]:
    """Return requests and limits under their names in quotas."""
    used: dict[str, int] = {}
    for name, amount in requests.items():
        if name in _COMPUTE or name.startswith(_HUGE_PAGES):
            used[name] = used[_REQUESTS + name] = amount
        elif is_extended(name):
            used[_REQUESTS + name] = amount
    return used | {_LIMITS + name: amount for name, amount in limits.items() if name in _COMPUTE}


def _usage_of_service(spec: Mapping[str, Any]) -> Usage:
    kind, ports = spec.get("type"), spec.get("ports") or ()
    is_balanced = kind == "LoadBalancer"
    has_ports = kind == "NodePort" or (is_balanced and spec.get("allocateLoadBalancerNodePorts") is not False)
    node_ports = len(ports) if has_ports else sum(1 for port in ports if is_balanced and port.get("nodePort"))
    one = dict.fromkeys(("count/services", "services"), NANO)
    return one | {"services.loadbalancers": NANO if is_balanced else 0, "services.nodeports": node_ports * NANO}


def family_in(obj: Obj, name: str) -> QuantityFormat:
    """Return the suffix family in which an object writes its usage of a resource."""
    resource = name.removeprefix(_REQUESTS).removeprefix(_LIMITS)
    fields = ("limits",) if name.startswith(_LIMITS) else ("requests", "limits")
    spec = obj.get("spec") or {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()), spec):
        for field in fields:
            text = ((container.get("resources") or {}).get(field) or {}).get(resource)
            if text is not None:
                return format_of(text)
    return QuantityFormat.DECIMAL


def unspecified_resources(pod: Obj, bounded: Iterable[str]) -> str:
    """Describe the limited resources that containers fail to specify; empty if none."""
    spec = pod["spec"]
    wanted = [name for name in _MUST_BE_SPECIFIED if name in set(bounded)]
    if not wanted or spec.get("resources"):
        return ""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    specified = {c["name"]: _compute(container_requests(c), container_limits(c)) for c in containers}
    silent = {name: sorted(container for container, has in specified.items() if name not in has) for name in wanted}
    return "; ".join(f"{name} for: {','.join(containers)}" for name, containers in silent.items() if containers)


# --- scopes ---


def scopes_of(spec: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """Return the scopes of a quota; all must match."""
    plain = [Requirement(name, "Exists", ()) for name in spec.get("scopes") or ()]
    expressions = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return (*plain, *(Requirement(e["scopeName"], e["operator"], tuple(e.get("values") or ())) for e in expressions))


def is_in_scope(obj: Obj, kind: str, scopes: Sequence[Requirement]) -> bool:
    """Report whether all scopes match an object; only pods have scopes."""
    return not scopes or (kind == scheme.POD and all(_holds(scope, obj) for scope in scopes))


def is_ending(pod: Obj) -> bool:
    """Report whether a pod has a deadline: the Terminating scope."""
    return (pod["spec"].get("activeDeadlineSeconds") or -1) >= 0


def _holds(scope: Requirement, pod: Obj) -> bool:
    spec = pod["spec"]
    match scope.key:
        case "Terminating":
            return is_ending(pod)
        case "NotTerminating":
            return not is_ending(pod)
        case "BestEffort":
            return _is_best_effort(spec)
        case "NotBestEffort":
            return not _is_best_effort(spec)
        case "PriorityClass":
            name = spec.get("priorityClassName")
            return scope.matches({scope.key: name} if name else {})
        case "CrossNamespacePodAffinity":
            return _looks_elsewhere(spec.get("affinity") or {})
    return False


def _is_best_effort(spec: Mapping[str, Any]) -> bool:
    """Report whether no container requests cpu or memory."""
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        requests = container_requests(container)
        if requests.get("cpu") or requests.get("memory"):
            return False
    return True


def _looks_elsewhere(affinity: Mapping[str, Any]) -> bool:
    """Report whether a pod has (anti-)affinity to pods of namespaces that it names."""
    for each in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(each) or {}
        terms = list(rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ())
        terms += [t["podAffinityTerm"] for t in rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ()]
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms):
            return True
    return False
