"""ResourceQuotas: usage of objects, scopes, the ledger of used amounts, the admission check, the status controller.

Sources: Kubernetes's pkg/quota/v1/evaluator/core, k8s.io/apiserver pkg/quota/v1/generic. Amounts are in billionths.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.admission_plugins.built_in import forbidden
from batchyard.api import scheme
from batchyard.api.custom_kinds import DEFINITION, is_served, kind_of
from batchyard.api.errors import RefusedForNow
from batchyard.api.meta import (
    NANO,
    Key,
    Obj,
    QuantityFormat,
    Requirement,
    canonical,
    format_of,
    formatted,
    group_kind,
    key_of,
    parse,
    with_status,
)
from batchyard.api.scheme import ServedKind
from batchyard.api.times import parse_time
from batchyard.api.validation.rules import is_extended
from batchyard.api.views.node import container_limits, container_requests, pod_total
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import ReconcileResult

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


# --- ledger ---
#
# ResourceQuota ledger: the usage of each quota, updated incrementally.
#
# A quota is counted on first use, and from then on with each change of a matching object. The usage of each object is
# stored, so an already counted change has no effect: callers may report it before or after the write.


_DELETED = EventType.DELETED


class QuotaTally:
    """The usage of one quota, by object."""

    __slots__ = ("_charges", "_families", "_late_after", "_scopes", "is_complete", "kinds", "spec", "used")

    def __init__(self, spec: Obj, reader: Reader) -> None:
        self.spec = spec
        self.used: dict[str, int] = {}
        #: Whether the kinds of all its resources are known.
        self.is_complete = True
        #: The count names for each kind that it limits.
        self.kinds: dict[str, tuple[str, ...]] = {}
        self._families: dict[str, QuantityFormat] = {}
        self._scopes = scopes_of(spec)
        self._charges: dict[Key, Usage] = {}
        #: Terminating pods, each with the end of its grace period; from then on their compute usage does not count.
        self._late_after: dict[Key, Instant] = {}
        for name in sorted(spec.get("hard") or ()):
            self._bound(name, reader)

    def shown(self, name: str) -> str:
        """Return the usage of a resource in Kubernetes's format."""
        return formatted(self.used[name], self._families.get(name, QuantityFormat.DECIMAL))

    def is_about(self, obj: Obj, kind: str) -> bool:
        """Report whether it limits the usage of an object."""
        return kind in self.kinds and is_in_scope(obj, kind, self._scopes)

    def charge(self, obj: Obj, kind: str) -> Usage:
        """Return the usage of an object in the limited resources."""
        if not self.is_about(obj, kind):
            return {}
        return {name: amount for name, amount in usage(obj, kind, self.kinds[kind]).items() if name in self.used}

    def count(self, key: Key, obj: Obj | None) -> bool:
        """Count a changed or deleted (None) object. Return whether usage changes, now or later."""
        was_late_after = self._late_after.pop(key, None)
        if obj is not None and "deletionTimestamp" in obj["metadata"] and key.kind == scheme.POD:
            grace = obj["metadata"].get("deletionGracePeriodSeconds") or 0
            self._late_after[key] = parse_time(obj["metadata"]["deletionTimestamp"]) + grace * SECOND
        is_changed = self._replace(key, {} if obj is None else self.charge(obj, key.kind), obj)
        return is_changed or self._late_after.get(key) != was_late_after

    def release_late(self, now: Instant) -> Instant | None:
        """Release the usage of pods past their grace period. Return when the next one is due."""
        for key, until in list(self._late_after.items()):
            if until < now:
                del self._late_after[key]
                self._replace(key, left_of_late(self._charges.get(key, {})), None)
        return min(self._late_after.values(), default=None)

    def _replace(self, key: Key, new: Usage, obj: Obj | None) -> bool:
        old = self._charges.pop(key, {})
        if new:
            self._charges[key] = new
        if new == old:
            return False
        for name, amount in old.items():
            self.used[name] -= amount
        for name, amount in new.items():
            if not self.used[name] and obj is not None:
                self._families[name] = family_in(obj, name)
            self.used[name] += amount
        return True

    def _bound(self, name: str, reader: Reader) -> None:
        """Set up a limited resource, and the kind that uses it."""
        kind = kind_of_resource(name)
        info = scheme.kind_info(kind) if kind else None
        if kind is None:
            info = next((each for each in _custom_kinds(reader) if name in count_names(each)), None)
            if info is None:
                self.is_complete = self.is_complete and not name.startswith(COUNT)
                return
        self.used[name] = 0
        if info is not None:
            self.kinds[info.constant] = count_names(info)


def _custom_kinds(reader: Reader) -> Iterable[ServedKind]:
    return [kind_of(definition) for definition in reader.list(DEFINITION) if is_served(definition)]


class QuotaLedger:
    """The tallies of the quotas in use, by Namespace."""

    def __init__(self) -> None:
        self._tallies: dict[str, dict[Key, QuotaTally]] = {}

    def observe(self, event: WatchEvent) -> Sequence[Key]:
        """Count a change. Return the quotas whose usage changed."""
        key = event.key
        if key.kind == DEFINITION:
            return self._forget_incomplete()
        tallies = self._tallies.get(key.namespace)
        if tallies is None:
            return ()
        if key.kind == scheme.RESOURCE_QUOTA and event.type is _DELETED:
            tallies.pop(key, None)
        obj = None if event.type is _DELETED else event.obj
        return [quota for quota, tally in tallies.items() if key.kind in tally.kinds and tally.count(key, obj)]

    def tally(self, quota: Obj, reader: Reader) -> QuotaTally:
        """Return the usage of a quota."""
        key, spec = key_of(quota), quota.get("spec") or {}
        tallies = self._tallies.setdefault(key.namespace, {})
        known = tallies.get(key)
        if known is not None and (known.spec is spec or known.spec == spec):
            return known
        tally = tallies[key] = QuotaTally(spec, reader)
        for kind in tally.kinds:
            for obj in reader.list(kind, key.namespace):
                tally.count(key_of(obj), obj)
        return tally

    def _forget_incomplete(self) -> Sequence[Key]:
        """Drop the tallies with unknown kinds after a change of a CustomResourceDefinition; they are recounted."""
        found = [key for tallies in self._tallies.values() for key, tally in tallies.items() if not tally.is_complete]
        for key in found:
            del self._tallies[key.namespace][key]
        return found


# --- admission ---
#
# ResourceQuota admission plugin.
#
# Usage is that of the store at the moment of the check, so concurrent requests can never exceed the quota together. A
# quota applies as soon as it exists, with its spec; its usage is never unknown.
# Source: k8s.io/apiserver, pkg/admission/plugin/resourcequota.


class _QuotaCharge(NamedTuple):
    """The additional usage of an object in one quota."""

    quota: Obj
    tally: QuotaTally
    more: Usage


class QuotaAdmission:
    """Checks new and changed objects against quotas. It must observe every change as it happens."""

    def __init__(self) -> None:
        self._ledger = QuotaLedger()

    def observe(self, event: WatchEvent) -> None:
        """Process a change."""
        self._ledger.observe(event)

    def check_new(self, obj: Obj, reader: Reader) -> None:
        """Check a new object. Raise RefusedForNow if it exceeds a quota."""
        quotas = reader.list(scheme.RESOURCE_QUOTA, obj["metadata"].get("namespace", ""))
        if quotas:
            self._check(obj, None, quotas, reader)

    def check_changed(self, new: Obj, old: Obj, reader: Reader) -> None:
        """Check the additional usage of a changed object in the same way."""
        quotas = reader.list(scheme.RESOURCE_QUOTA, new["metadata"].get("namespace", ""))
        if quotas and (group_kind(new) != scheme.POD or is_ending(new) != is_ending(old)):
            self._check(new, old, quotas, reader)

    def _check(self, obj: Obj, old: Obj | None, quotas: Sequence[Obj], reader: Reader) -> None:
        kind = group_kind(obj)
        bills: list[_QuotaCharge] = []
        for quota in quotas:
            tally = self._ledger.tally(quota, reader)
            tally.release_late(parse_time(obj["metadata"]["creationTimestamp"]))
            if not tally.is_about(obj, kind):
                continue
            if kind == scheme.POD and (words := unspecified_resources(obj, tally.used)):
                raise _refused(obj, f"failed quota: {_name(quota)}: must specify {words}")
            charge = tally.charge(obj, kind)
            before = {} if old is None else tally.charge(old, kind)
            more = {name: amount - before.get(name, 0) for name, amount in charge.items()}
            bills.append(_QuotaCharge(quota, tally, {name: amount for name, amount in more.items() if amount > 0}))
        for bill in bills:
            _check_bill(obj, bill)


def _check_bill(obj: Obj, bill: _QuotaCharge) -> None:
    hard, tally = bill.quota["spec"].get("hard") or {}, bill.tally
    over = sorted(name for name, amount in bill.more.items() if tally.used[name] + amount > parse(hard[name]))
    if over:
        requested = _listed(over, {name: formatted(bill.more[name], family_in(obj, name)) for name in over})
        used = _listed(over, {name: tally.shown(name) for name in over})
        limited = _listed(over, {name: canonical(hard[name]) for name in over})
        amounts = f"requested: {requested}, used: {used}, limited: {limited}"
        raise _refused(obj, f"exceeded quota: {_name(bill.quota)}, {amounts}")


def _name(quota: Obj) -> str:
    name: str = quota["metadata"]["name"]
    return name


def _refused(obj: Obj, why: str) -> RefusedForNow:
    return RefusedForNow(f"{forbidden(obj)}: {why}")


def _listed(names: Iterable[str], amounts: Mapping[str, str]) -> str:
    return ",".join(f"{name}={amounts[name]}" for name in names)


# --- controller ---
#
# ResourceQuota controller: writes the limits and the usage of each quota to its status.
#
# Source: Kubernetes's pkg/controller/resourcequota, which recounts everything; here counts are updated incrementally.


class ResourceQuotas:
    """Writes the status of quotas from the ledger."""

    name = "resource-quotas"
    rank = 0
    kinds = None  # any object may be counted

    def __init__(self) -> None:
        self._ledger = QuotaLedger()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the quota, and all quotas whose usage changed."""
        changed = self._ledger.observe(event)
        if event.key.kind != scheme.RESOURCE_QUOTA or event.type is _DELETED:
            return changed
        return (event.key, *changed)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update its status: limits and usage."""
        quota = reader.get(key)
        if quota is None:
            return ReconcileResult()
        tally = self._ledger.tally(quota, reader)
        look_at = tally.release_late(now)
        status = {
            "hard": dict((quota.get("spec") or {}).get("hard") or {}),
            "used": {name: tally.shown(name) for name in tally.used},
        }
        writes = [] if status == quota.get("status") else [UpdateStatus(with_status(quota, status))]
        return ReconcileResult([*writes], requeue_at=None if look_at is None else look_at + 1)
