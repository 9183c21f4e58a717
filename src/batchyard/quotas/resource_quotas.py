"""ResourceQuotas: the usage of objects, quota scopes, the tally of each quota, admission plugin and controller.

Amounts are in billionths. Sources: Kubernetes's pkg/quota/v1/evaluator/core, k8s.io/apiserver pkg/quota/v1/generic.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.admission_plugins.built_in import forbidden_prefix
from batchyard.api import meta, scheme
from batchyard.api.custom_kinds import DEFINITION, is_served, kind_from_definition
from batchyard.api.errors import TemporarilyForbidden
from batchyard.api.scheme import ServedKind
from batchyard.api.times import parse_time
from batchyard.api.validation.rules import is_extended
from batchyard.api.views.node import container_limits, container_requests, pod_total_amounts
from batchyard.api.views.volumes import storage_class_name
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import ReconcileResult

Usage: TypeAlias = Mapping[str, int]

COUNT_PREFIX: Final = "count/"
_POD_COUNT: Final = "count/pods"
_REQUESTS: Final = "requests."
_LIMITS: Final = "limits."
_HUGE_PAGES: Final = "hugepages-"
#: Resources that a quota may limit both by their bare name and with the prefix `requests.`.
_COMPUTE_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
_POD_RESOURCES: Final = frozenset(
    {
        _POD_COUNT,
        "pods",
        *_COMPUTE_RESOURCES,
        *(f"{prefix}{name}" for name in _COMPUTE_RESOURCES for prefix in (_REQUESTS, _LIMITS)),
    }
)
_SERVICE_RESOURCES: Final = frozenset({"count/services", "services", "services.nodeports", "services.loadbalancers"})
#: Kinds whose objects are also counted under a bare plural name, by that name.
_KIND_BY_ALIAS: Final = {
    "configmaps": scheme.CONFIG_MAP,
    "replicationcontrollers": scheme.REPLICATION_CONTROLLER,
    "resourcequotas": scheme.RESOURCE_QUOTA,
    "secrets": scheme.SECRET,
}
_ALIAS_BY_KIND: Final = {kind: name for name, kind in _KIND_BY_ALIAS.items()}
#: Resources of PersistentVolumeClaims; with a prefix they limit the claims of one storage class.
_CLAIM_RESOURCES: Final = ("persistentvolumeclaims", "requests.storage")
_STORAGE_CLASS_INFIX: Final = ".storageclass.storage.k8s.io/"
#: Resources that every container must specify if a quota limits them.
_RESOURCES_TO_SPECIFY: Final = ("cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory")
_TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})


def object_count_names(kind: scheme.ServedKind) -> tuple[str, ...]:
    """Return the resource names that count objects of a kind in quotas, such as `count/jobs.batch`, with any alias."""
    name = f"{COUNT_PREFIX}{kind.plural}.{kind.group}" if kind.group else f"{COUNT_PREFIX}{kind.plural}"
    alias = _ALIAS_BY_KIND.get(kind.constant)
    return (name,) if alias is None else (name, alias)


def kind_of_resource(name: str) -> str | None:
    """Return the kind whose objects use a quota's resource; None if it is unknown or a custom kind."""
    if name.rpartition(_STORAGE_CLASS_INFIX)[2] in _CLAIM_RESOURCES:
        return scheme.PERSISTENT_VOLUME_CLAIM
    if name in _POD_RESOURCES or name.startswith((_HUGE_PAGES, f"{_REQUESTS}{_HUGE_PAGES}")) or _is_device(name):
        return scheme.POD
    if name in _SERVICE_RESOURCES:
        return scheme.SERVICE
    return _KIND_BY_ALIAS.get(name) or _KIND_BY_COUNT_NAME.get(name)


_KIND_BY_COUNT_NAME: Final = {
    object_count_names(served_kind)[0]: served_kind.constant for served_kind in scheme.KINDS if served_kind.namespaced
}


def _is_device(name: str) -> bool:
    return name.startswith(_REQUESTS) and "/" in name and "kubernetes.io/" not in name


def object_usage(obj: meta.Obj, kind: str, count_names: Sequence[str]) -> Usage:
    """Return the amounts of quota resources that an object uses, in billionths, by resource.

    An object that is not a Pod, Service or PersistentVolumeClaim uses one unit of each resource in `count_names`.
    """
    match kind:
        case scheme.POD:
            return _usage_of_pod(obj)
        case scheme.SERVICE:
            return _usage_of_service(obj["spec"])
        case scheme.PERSISTENT_VOLUME_CLAIM:
            return _usage_of_claim(obj)
    return dict.fromkeys(count_names, meta.NANO)


def remaining_usage_after_grace(pod_usage: Usage) -> Usage:
    """Return the part of a terminating pod's usage that remains after its grace period: only its object count."""
    return {_POD_COUNT: pod_usage[_POD_COUNT]} if _POD_COUNT in pod_usage else {}


def _usage_of_pod(pod: meta.Obj) -> Usage:
    usage = {_POD_COUNT: meta.NANO}
    if (pod.get("status") or {}).get("phase") in _TERMINAL_PHASES:
        return usage
    usage["pods"] = meta.NANO
    spec = pod["spec"]
    requests, limits = pod_total_amounts(spec, container_requests), pod_total_amounts(spec, container_limits)
    for name, text in (spec.get("overhead") or {}).items():
        requests[name] = requests.get(name, 0) + meta.parse_quantity(text)
        if name in limits:
            limits[name] += meta.parse_quantity(text)
    return usage | _usage_of_requests(requests, limits)


def _usage_of_requests(requests: Mapping[str, int], limits: Mapping[str, int]) -> dict[str, int]:
    usage: dict[str, int] = {}
    for name, amount in requests.items():
        if name in _COMPUTE_RESOURCES or name.startswith(_HUGE_PAGES):
            usage[name] = usage[_REQUESTS + name] = amount
        elif is_extended(name):
            usage[_REQUESTS + name] = amount
    return usage | {_LIMITS + name: amount for name, amount in limits.items() if name in _COMPUTE_RESOURCES}


def _usage_of_service(spec: Mapping[str, Any]) -> Usage:
    kind, ports = spec.get("type"), spec.get("ports") or ()
    is_load_balancer = kind == "LoadBalancer"
    has_node_ports = kind == "NodePort" or (is_load_balancer and spec.get("allocateLoadBalancerNodePorts") is not False)
    node_port_count = len(ports) if has_node_ports else sum(1 for p in ports if is_load_balancer and p.get("nodePort"))
    object_counts = dict.fromkeys(("count/services", "services"), meta.NANO)
    load_balancer_amount = meta.NANO if is_load_balancer else 0
    return object_counts | {
        "services.loadbalancers": load_balancer_amount,
        "services.nodeports": node_port_count * meta.NANO,
    }


def _usage_of_claim(claim: meta.Obj) -> Usage:
    usage = dict.fromkeys(("count/persistentvolumeclaims", "persistentvolumeclaims"), meta.NANO)
    requested_text = (((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}).get("storage")
    if requested_text is not None:
        allocated_text = ((claim.get("status") or {}).get("allocatedResources") or {}).get("storage", "0")
        amount = max(meta.parse_quantity(requested_text), meta.parse_quantity(allocated_text))
        usage["requests.storage"] = -(-amount // meta.NANO) * meta.NANO  # in whole bytes
    storage_class = storage_class_name(claim)
    if not storage_class:
        return usage
    return usage | {f"{storage_class}{_STORAGE_CLASS_INFIX}{n}": usage[n] for n in _CLAIM_RESOURCES if n in usage}


def quantity_format_of(obj: meta.Obj, name: str) -> meta.QuantityFormat:
    """Return the suffix format in which an object's spec writes the amount of a resource; decimal if it has none.

    `name` is the resource's name in a ResourceQuota, such as `requests.cpu`.
    """
    resource_name = name.rpartition(_STORAGE_CLASS_INFIX)[2].removeprefix(_REQUESTS).removeprefix(_LIMITS)
    resource_fields = ("limits",) if name.startswith(_LIMITS) else ("requests", "limits")
    spec = obj.get("spec") or {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()), spec):
        for field in resource_fields:
            text = ((container.get("resources") or {}).get(field) or {}).get(resource_name)
            if text is not None:
                return meta.quantity_format(text)
    return meta.QuantityFormat.DECIMAL


def unspecified_resources_message(pod: meta.Obj, limited_resources: Iterable[str]) -> str:
    """Return the part of Kubernetes's message that lists limited cpu and memory amounts that a pod's containers omit.

    Return '' if they omit none, or if the pod sets resources as a whole.
    """
    spec = pod["spec"]
    required_names = [name for name in _RESOURCES_TO_SPECIFY if name in set(limited_resources)]
    if not required_names or spec.get("resources"):
        return ""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    usages = {c["name"]: _usage_of_requests(container_requests(c), container_limits(c)) for c in containers}
    container_names = {name: sorted(c for c, usage in usages.items() if name not in usage) for name in required_names}
    return "; ".join(
        f"{name} for: {','.join(containers)}" for name, containers in container_names.items() if containers
    )


def scopes_of(spec: Mapping[str, Any]) -> tuple[meta.Requirement, ...]:
    """Return the scopes of a ResourceQuota as selector requirements, all of which must match."""
    simple_scopes = [meta.Requirement(name, "Exists", ()) for name in spec.get("scopes") or ()]
    expressions = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    scopes = [meta.Requirement(e["scopeName"], e["operator"], tuple(e.get("values") or ())) for e in expressions]
    return (*simple_scopes, *scopes)


def is_in_scope(obj: meta.Obj, kind: str, scopes: Sequence[meta.Requirement]) -> bool:
    """Return whether all scopes of a quota match an object; scopes match only pods."""
    return not scopes or (kind == scheme.POD and all(_matches_scope(scope, obj) for scope in scopes))


def has_active_deadline(pod: meta.Obj) -> bool:
    """Return whether a pod has activeDeadlineSeconds, which puts the pod in the quota scope Terminating."""
    return pod["spec"].get("activeDeadlineSeconds") is not None


def _matches_scope(scope: meta.Requirement, pod: meta.Obj) -> bool:
    spec = pod["spec"]
    match scope.key:
        case "Terminating":
            return has_active_deadline(pod)
        case "NotTerminating":
            return not has_active_deadline(pod)
        case "BestEffort":
            return _is_best_effort(spec)
        case "NotBestEffort":
            return not _is_best_effort(spec)
        case "PriorityClass":
            name = spec.get("priorityClassName")
            return scope.matches({scope.key: name} if name else {})
        case "CrossNamespacePodAffinity":
            return _selects_other_namespaces(spec.get("affinity") or {})
    return False


def _is_best_effort(spec: Mapping[str, Any]) -> bool:
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        requests = container_requests(container)
        if requests.get("cpu") or requests.get("memory"):
            return False
    return True


def _selects_other_namespaces(affinity: Mapping[str, Any]) -> bool:
    for each in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(each) or {}
        terms = list(rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ())
        terms += [t["podAffinityTerm"] for t in rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ()]
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms):
            return True
    return False


# ResourceQuota tallies: the usage of each quota, updated incrementally.
#
# A quota is counted on first use, and from then on with each change of a matching object. The usage of each object is
# stored, so an already counted change has no effect: callers may report it before or after the write.


_DELETED = EventType.DELETED


class QuotaTally:
    """The usage of one ResourceQuota, in total and for each counted object."""

    __slots__ = (
        "_formats",
        "_grace_period_ends",
        "_scopes",
        "_usage_by_object",
        "count_names_by_kind",
        "is_complete",
        "spec",
        "used_amounts",
    )

    def __init__(self, spec: meta.Obj, reader: Reader) -> None:
        self.spec = spec
        self.used_amounts: dict[str, int] = {}
        #: Whether the kind of every limited resource with the prefix `count/` is known.
        self.is_complete = True
        #: The count names of each limited kind.
        self.count_names_by_kind: dict[str, tuple[str, ...]] = {}
        self._formats: dict[str, meta.QuantityFormat] = {}
        self._scopes = scopes_of(spec)
        self._usage_by_object: dict[meta.Key, Usage] = {}
        #: Terminating pods, each with the end of its grace period; from then on their compute usage does not count.
        self._grace_period_ends: dict[meta.Key, Instant] = {}
        for name in sorted(spec.get("hard") or ()):
            self._register_resource(name, reader)

    def format_used_amount(self, name: str) -> str:
        """Return the used amount of a resource as a Kubernetes quantity."""
        return meta.format_quantity(self.used_amounts[name], self._formats.get(name, meta.QuantityFormat.DECIMAL))

    def applies_to(self, obj: meta.Obj, kind: str) -> bool:
        """Return whether the quota limits the usage of an object: its kind is limited and the scopes match."""
        return kind in self.count_names_by_kind and is_in_scope(obj, kind, self._scopes)

    def charged_usage(self, obj: meta.Obj, kind: str) -> Usage:
        """Return the amounts of the limited resources that an object uses; {} if the quota does not apply to it."""
        if not self.applies_to(obj, kind):
            return {}
        return {
            name: amount
            for name, amount in object_usage(obj, kind, self.count_names_by_kind[kind]).items()
            if name in self.used_amounts
        }

    def update_object(self, key: meta.Key, obj: meta.Obj | None) -> bool:
        """Count an object (None: deleted); return whether the usage changes, now or at the end of a grace period."""
        previous_grace_end = self._grace_period_ends.pop(key, None)
        if obj is not None and "deletionTimestamp" in obj["metadata"] and key.kind == scheme.POD:
            grace_seconds = obj["metadata"].get("deletionGracePeriodSeconds") or 0
            self._grace_period_ends[key] = parse_time(obj["metadata"]["deletionTimestamp"]) + grace_seconds * SECOND
        is_usage_changed = self._replace_usage(key, {} if obj is None else self.charged_usage(obj, key.kind), obj)
        return is_usage_changed or self._grace_period_ends.get(key) != previous_grace_end

    def release_expired_pods(self, now: Instant) -> Instant | None:
        """Release the usage, except the object count, of pods past their grace period.

        Returns when the next grace period ends; None if none is running.
        """
        for key, grace_end in list(self._grace_period_ends.items()):
            if grace_end < now:
                del self._grace_period_ends[key]
                self._replace_usage(key, remaining_usage_after_grace(self._usage_by_object.get(key, {})), None)
        return min(self._grace_period_ends.values(), default=None)

    def _replace_usage(self, key: meta.Key, new: Usage, obj: meta.Obj | None) -> bool:
        old = self._usage_by_object.pop(key, {})
        if new:
            self._usage_by_object[key] = new
        if new == old:
            return False
        for name, amount in old.items():
            self.used_amounts[name] -= amount
        for name, amount in new.items():
            if not self.used_amounts[name] and obj is not None:
                self._formats[name] = quantity_format_of(obj, name)
            self.used_amounts[name] += amount
        return True

    def _register_resource(self, name: str, reader: Reader) -> None:
        kind = kind_of_resource(name)
        served_kind = (
            next((each for each in _custom_kinds(reader) if name in object_count_names(each)), None)
            if kind is None
            else scheme.kind_info(kind)
        )
        if served_kind is None:
            self.is_complete = self.is_complete and not name.startswith(COUNT_PREFIX)
            return
        self.used_amounts[name] = 0
        self.count_names_by_kind[served_kind.constant] = object_count_names(served_kind)


def _custom_kinds(reader: Reader) -> Iterable[ServedKind]:
    return [kind_from_definition(definition) for definition in reader.list(DEFINITION) if is_served(definition)]


class QuotaTallies:
    """The usage of all ResourceQuotas for which `tally()` was called, by Namespace."""

    def __init__(self) -> None:
        self._tallies: dict[str, dict[meta.Key, QuotaTally]] = {}

    def observe(self, event: WatchEvent) -> Sequence[meta.Key]:
        """Update the quotas' usage from a watch event; return the keys of the quotas to reconcile.

        If a CustomResourceDefinition changed, these are the quotas that limit a kind which was unknown. Their usage is
        forgotten, and is counted again by `tally`.
        """
        key = event.key
        if key.kind == DEFINITION:
            return self._delete_incomplete_tallies()
        tallies = self._tallies.get(key.namespace)
        if tallies is None:
            return ()
        if key.kind == scheme.RESOURCE_QUOTA and event.type is _DELETED:
            tallies.pop(key, None)
        obj = None if event.type is _DELETED else event.obj
        return [
            quota
            for quota, tally in tallies.items()
            if key.kind in tally.count_names_by_kind and tally.update_object(key, obj)
        ]

    def tally(self, quota: meta.Obj, reader: Reader) -> QuotaTally:
        """Return the usage of a quota; on first use or after a spec change, count the Namespace's objects."""
        key, spec = meta.key_of(quota), quota.get("spec") or {}
        tallies = self._tallies.setdefault(key.namespace, {})
        existing_tally = tallies.get(key)
        if existing_tally is not None and (existing_tally.spec is spec or existing_tally.spec == spec):
            return existing_tally
        tally = tallies[key] = QuotaTally(spec, reader)
        for kind in tally.count_names_by_kind:
            for obj in reader.list(kind, key.namespace):
                tally.update_object(meta.key_of(obj), obj)
        return tally

    def _delete_incomplete_tallies(self) -> Sequence[meta.Key]:
        keys = [key for tallies in self._tallies.values() for key, tally in tallies.items() if not tally.is_complete]
        for key in keys:
            del self._tallies[key.namespace][key]
        return keys


# ResourceQuota admission plugin.
#
# The usage is that of the store at the moment of the check, so concurrent requests cannot exceed a quota together. A
# quota applies as soon as it exists, even before its status is written.
# Source: k8s.io/apiserver, pkg/admission/plugin/resourcequota.


class _QuotaCharge(NamedTuple):
    quota: meta.Obj
    tally: QuotaTally
    additional_usage: Usage


class QuotaAdmission:
    """Admission plugin that checks new and changed objects against quotas; it must receive each event immediately."""

    def __init__(self) -> None:
        self._quota_tallies = QuotaTallies()

    def observe(self, event: WatchEvent) -> None:
        """Update the usage of quotas from a watch event."""
        self._quota_tallies.observe(event)

    def check_new_object(self, obj: meta.Obj, reader: Reader) -> None:
        """Check a new object against the quotas of its Namespace.

        Raises TemporarilyForbidden if the object exceeds a quota, or if containers omit a limited cpu or memory amount.
        """
        quotas = reader.list(scheme.RESOURCE_QUOTA, obj["metadata"].get("namespace", ""))
        if quotas:
            self._check_usage(obj, None, quotas, reader)

    def check_update(self, new: meta.Obj, old: meta.Obj, reader: Reader) -> None:
        """Check the additional usage of a changed object; raise TemporarilyForbidden as `check_new_object()` does.

        A Pod is checked only if the update adds or removes activeDeadlineSeconds.
        """
        quotas = reader.list(scheme.RESOURCE_QUOTA, new["metadata"].get("namespace", ""))
        if quotas and (meta.group_kind(new) != scheme.POD or has_active_deadline(new) != has_active_deadline(old)):
            self._check_usage(new, old, quotas, reader)

    def _check_usage(self, obj: meta.Obj, old: meta.Obj | None, quotas: Sequence[meta.Obj], reader: Reader) -> None:
        kind = meta.group_kind(obj)
        charges: list[_QuotaCharge] = []
        for quota in quotas:
            tally = self._quota_tallies.tally(quota, reader)
            tally.release_expired_pods(parse_time(obj["metadata"]["creationTimestamp"]))
            if not tally.applies_to(obj, kind):
                continue
            if kind == scheme.POD and (unspecified := unspecified_resources_message(obj, tally.used_amounts)):
                raise _forbidden_error(obj, f"failed quota: {_quota_name(quota)}: must specify {unspecified}")
            charge = tally.charged_usage(obj, kind)
            old_charge = {} if old is None else tally.charged_usage(old, kind)
            additional_usage = {name: amount - old_charge.get(name, 0) for name, amount in charge.items()}
            usage_increase = {name: amount for name, amount in additional_usage.items() if amount > 0}
            charges.append(_QuotaCharge(quota, tally, usage_increase))
        for quota_charge in charges:
            _check_charge(obj, quota_charge)


def _check_charge(obj: meta.Obj, quota_charge: _QuotaCharge) -> None:
    hard_limits, tally = quota_charge.quota["spec"].get("hard") or {}, quota_charge.tally
    names = sorted(
        name
        for name, amount in quota_charge.additional_usage.items()
        if tally.used_amounts[name] + amount > meta.parse_quantity(hard_limits[name])
    )
    if names:
        requested_text = _format_amounts(
            names,
            {
                name: meta.format_quantity(quota_charge.additional_usage[name], quantity_format_of(obj, name))
                for name in names
            },
        )
        used_text = _format_amounts(names, {name: tally.format_used_amount(name) for name in names})
        limited_text = _format_amounts(names, {name: meta.canonical_quantity(hard_limits[name]) for name in names})
        amounts_text = f"requested: {requested_text}, used: {used_text}, limited: {limited_text}"
        raise _forbidden_error(obj, f"exceeded quota: {_quota_name(quota_charge.quota)}, {amounts_text}")


def _quota_name(quota: meta.Obj) -> str:
    name: str = quota["metadata"]["name"]
    return name


def _forbidden_error(obj: meta.Obj, reason: str) -> TemporarilyForbidden:
    return TemporarilyForbidden(f"{forbidden_prefix(obj)}: {reason}")


def _format_amounts(names: Iterable[str], amount_texts: Mapping[str, str]) -> str:
    return ",".join(f"{name}={amount_texts[name]}" for name in names)


# ResourceQuota controller: writes the limits and the usage of each quota to its status.
#
# Source: Kubernetes's pkg/controller/resourcequota, which recounts everything; here counts are updated incrementally.


class ResourceQuotas:
    """Controller that writes the limits and usage of ResourceQuotas to their status."""

    name = "resource-quotas"
    rank = 0
    kinds = None  # any object may be counted

    def __init__(self) -> None:
        self._quota_tallies = QuotaTallies()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of a changed quota, and the keys of quotas whose usage changes or must be counted again."""
        changed_keys = self._quota_tallies.observe(event)
        if event.key.kind != scheme.RESOURCE_QUOTA or event.type is _DELETED:
            return changed_keys
        return (event.key, *changed_keys)

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the write of a quota's limits and usage to its status; requeue after the next grace period ends."""
        quota = reader.get(key)
        if quota is None:
            return ReconcileResult()
        tally = self._quota_tallies.tally(quota, reader)
        next_grace_end = tally.release_expired_pods(now)
        status = {
            "hard": dict((quota.get("spec") or {}).get("hard") or {}),
            "used": {name: tally.format_used_amount(name) for name in tally.used_amounts},
        }
        writes = [] if status == quota.get("status") else [UpdateStatus(meta.with_status(quota, status))]
        return ReconcileResult([*writes], requeue_at=None if next_grace_end is None else next_grace_end + 1)
