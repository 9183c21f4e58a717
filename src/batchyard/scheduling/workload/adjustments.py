"""Effects of LimitRanges, RuntimeClasses and priority classes on Workloads, and the WorkloadPriorityClass controller.

Sources: Kueue's pkg/workload/resources.go (AdjustResources, ValidateLimitRange) and pkg/util/limitrange. LimitRanges
and RuntimeClasses change only the view of a Workload, not the stored object.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.admission_plugins.built_in import find_global_default
from batchyard.admission_plugins.limit_ranges import limits_of
from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, key_of, label, with_path
from batchyard.api.views.node import container_limits, container_requests, pod_total_amounts
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, Reader, Update, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules
from batchyard.scheduling.resource_charging import ResourceCharging, ResourceRules

ResourceAmounts = Mapping[str, int]


class NamespaceLimits(NamedTuple):
    """The defaults and bounds of container and pod resources in a Namespace, combined from all its LimitRanges."""

    #: Default requests and limits of containers without their own.
    requests: Mapping[str, Any]
    limits: Mapping[str, Any]
    #: The maximum and minimum amounts, in billionths, by type (Container or Pod) and resource.
    max_amounts: Mapping[str, ResourceAmounts]
    min_amounts: Mapping[str, ResourceAmounts]


def combine_limit_ranges(limit_ranges: Sequence[Obj]) -> NamespaceLimits:
    """Combine the LimitRanges of a Namespace: the tightest bounds, and the first default of each resource."""
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    max_amounts: dict[str, dict[str, int]] = {}
    min_amounts: dict[str, dict[str, int]] = {}
    for limit in (each for limit_range in limit_ranges for each in limits_of(limit_range)):
        kind = limit["type"]
        if kind == "Container":
            requests = {**(limit.get("defaultRequest") or {}), **requests}
            limits = {**(limit.get("default") or {}), **limits}
        _tighten_bounds(max_amounts.setdefault(kind, {}), limit.get("max") or {}, min)
        _tighten_bounds(min_amounts.setdefault(kind, {}), limit.get("min") or {}, max)
    return NamespaceLimits(requests, limits, max_amounts, min_amounts)


def _tighten_bounds(bounds: dict[str, int], quantities: Mapping[str, Any], choose: Callable[[int, int], int]) -> None:
    for name, quantity in quantities.items():
        nano_amount = meta.parse_quantity(quantity)
        bounds[name] = choose(bounds.get(name, nano_amount), nano_amount)


def with_default_resources(workload: Obj, limits: NamespaceLimits, *, own_limits_first: bool = False) -> Obj:
    """Return the Workload with the LimitRange defaults that admission will set on its pods' containers.

    With `own_limits_first`, as in Kueue 0.20, a container's own limit replaces a missing request before the defaults
    apply. In Kueue 0.19, the default request takes precedence.
    """
    if not limits.requests and not limits.limits:
        return workload
    pod_sets = [_with_default_pod_set_resources(each, limits, own_limits_first) for each in _pod_sets(workload)]
    return {**workload, "spec": {**workload["spec"], "podSets": pod_sets}}


def with_overheads(workload: Obj, overheads: Mapping[str, Mapping[str, str]]) -> Obj:
    """Return the Workload with the overheads of RuntimeClasses added to those pod templates that set no overhead.

    `overheads` are the quantities by RuntimeClass name, then by resource.
    """
    pod_sets = [_with_overhead(each, overheads) for each in _pod_sets(workload)]
    return {**workload, "spec": {**workload["spec"], "podSets": pod_sets}}


def _with_overhead(pod_set: Obj, overheads: Mapping[str, Mapping[str, str]]) -> Obj:
    template = pod_set.get("template") or {}
    spec = template.get("spec") or {}
    overhead = overheads.get(spec.get("runtimeClassName") or "")
    if overhead is None or spec.get("overhead"):
        return pod_set
    return {**pod_set, "template": {**template, "spec": {**spec, "overhead": overhead}}}


def _pod_sets(workload: Obj) -> Sequence[Obj]:
    """Return the pod sets of a Workload; empty if it has none, which Kueue accepts."""
    return workload["spec"].get("podSets") or ()


def _with_default_pod_set_resources(pod_set: Obj, limits: NamespaceLimits, own_limits_first: bool) -> Obj:
    template = pod_set["template"]
    spec = dict(template["spec"])
    for field in ("initContainers", "containers"):
        if spec.get(field):
            spec[field] = [_with_default_container_resources(each, limits, own_limits_first) for each in spec[field]]
    return {**pod_set, "template": {**template, "spec": spec}}


def _with_default_container_resources(container: Obj, limits: NamespaceLimits, own_limits_first: bool) -> Obj:
    resources = container.get("resources") or {}
    own_limits = resources.get("limits") or {}
    merged_limits = {**limits.limits, **own_limits}
    implied_requests = own_limits if own_limits_first else {}
    merged_requests = {**limits.requests, **implied_requests, **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "limits": merged_limits, "requests": merged_requests}}


def describe_limit_violations(workload: Obj, limits: NamespaceLimits) -> str:
    """Return Kueue's message about the LimitRange bounds that the Workload's pods violate; '' if they violate none."""
    violations = [
        f"{path}: Invalid value: [{','.join(names)}]: requests must not be {bound}"
        for i, pod_set in enumerate(_pod_sets(workload))
        for path, names, bound in _limit_violations(
            pod_set["template"]["spec"], limits, f"spec.podSets[{i}].template.spec"
        )
    ]
    if not violations:
        return ""
    violations_text = violations[0] if len(violations) == 1 else f"[{', '.join(violations)}]"
    return f"resources didn't satisfy LimitRange constraints: {violations_text}"


def _limit_violations(
    spec: Mapping[str, Any], limits: NamespaceLimits, path: str
) -> Iterator[tuple[str, list[str], str]]:
    """Yield each violation of a LimitRange: field path, resources out of bounds, and the violated bound."""
    for field in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(field) or ()):
            requests, limit_amounts = container_requests(container), container_limits(container)
            min_amounts = {name: min(amount, limit_amounts.get(name, amount)) for name, amount in requests.items()}
            max_amounts = {name: max(amount, limit_amounts.get(name, amount)) for name, amount in requests.items()}
            yield from _bound_violations(limits, "Container", max_amounts, min_amounts, f"{path}.{field}[{i}]")
    pod_totals = pod_total_amounts(spec, container_requests)
    yield from _bound_violations(limits, "Pod", pod_totals, pod_totals, path)


def _bound_violations(
    limits: NamespaceLimits, kind: str, max_amounts: ResourceAmounts, min_amounts: ResourceAmounts, path: str
) -> Iterator[tuple[str, list[str], str]]:
    names_above = _amounts_above_bounds(max_amounts, limits.max_amounts.get(kind, {}))
    if names_above:
        yield path, names_above, "above the limitRange max"
    names_below = _amounts_above_bounds(limits.min_amounts.get(kind, {}), min_amounts)
    if names_below:
        yield path, names_below, "below the limitRange min"


def _amounts_above_bounds(amounts: ResourceAmounts, bounds: ResourceAmounts) -> list[str]:
    return sorted(f'"{name}"' for name, amount in amounts.items() if name in bounds and amount > bounds[name])


# Views of Workloads, adjusted by LimitRanges and RuntimeClasses, for decisions about pending Workloads. Their requests
# are the charged ones if the Configuration excludes or transforms resources.
#
# Source: AdjustResources in pkg/workload/resources.go of Kueue.


_DELETED = EventType.DELETED
_VIEW_CACHE_MAX = 16384


class AdjustedViews:
    """Builds and caches parsed Workloads (`WorkloadView`), adjusted by the current LimitRanges and RuntimeClasses."""

    def __init__(
        self,
        view_of: Callable[[Obj], WorkloadView],
        rules: DecisionRules = DEFAULT_RULES,
        resource_rules: ResourceRules | None = None,
    ) -> None:
        """`resource_rules` are the resources that quota is charged for; None charges the requests of the pods."""
        self._view_of = _nameless_view_of(view_of) if rules.ignores_pod_set_names else view_of
        self._rules = rules
        self._charging = None
        if resource_rules is not None and resource_rules.changes_requests:
            self._charging = ResourceCharging(resource_rules)
        self._limit_ranges: dict[str, dict[Key, Obj]] = {}
        self._limits: dict[str, NamespaceLimits] = {}
        #: The adjusted views by uid, each with its Workload.
        self._view_cache: dict[str, tuple[Obj, WorkloadView]] = {}
        #: Namespaces whose Workloads need a new view.
        self._changed_namespaces: dict[str, None] = {}
        #: Pod overhead by RuntimeClass, and the classes that changed.
        self._overheads: dict[str, Mapping[str, str]] = {}
        self._changed_classes: dict[str, None] = {}

    def observe(self, event: WatchEvent) -> None:
        """Update a Namespace's resource defaults and bounds from a watch event of a LimitRange."""
        namespace = event.key.namespace
        limit_ranges = self._limit_ranges.setdefault(namespace, {})
        limit_ranges.pop(event.key, None)
        if event.type is not _DELETED:
            limit_ranges[event.key] = event.obj
        if limit_ranges:
            self._limits[namespace] = combine_limit_ranges([limit_ranges[key] for key in sorted(limit_ranges)])
        else:
            del self._limit_ranges[namespace]
            self._limits.pop(namespace, None)
        self._view_cache.clear()
        self._changed_namespaces[namespace] = None

    def observe_runtime_class(self, event: WatchEvent) -> None:
        """Update the pod overhead of a RuntimeClass from its watch event."""
        name, overhead = event.key.name, (event.obj.get("overhead") or {}).get("podFixed") or {}
        if event.type is _DELETED:
            overhead = {}
        if overhead == self._overheads.get(name, {}):
            return
        self._overheads.pop(name, None)
        if overhead:
            self._overheads[name] = overhead
        self._view_cache.clear()
        self._changed_classes[name] = None

    @property
    def has_changed(self) -> bool:
        """Whether a LimitRange or RuntimeClass has changed since the last call of `outdated_workloads()`."""
        return bool(self._changed_namespaces or self._changed_classes)

    def outdated_workloads(self, kind: str, reader: Reader) -> list[Obj]:
        """Return the Workloads that LimitRange and RuntimeClass changes since the last call may affect."""
        changed_namespaces, self._changed_namespaces = self._changed_namespaces, {}
        changed_runtime_classes, self._changed_classes = self._changed_classes, {}
        workloads = [obj for namespace in changed_namespaces for obj in reader.list(kind, namespace)]
        all_workloads = reader.list(kind) if changed_runtime_classes else ()
        return [
            *workloads,
            *(obj for obj in all_workloads if any(name in changed_runtime_classes for name in _runtime_classes(obj))),
        ]

    def view(self, obj: Obj) -> WorkloadView:
        """Return the parsed Workload, adjusted by the LimitRanges and RuntimeClasses, from the cache if possible."""
        limits = self._limits.get(obj["metadata"].get("namespace", "")) if self._limits else None
        if limits is None and self._charging is None and not self._has_overhead(obj):
            return self._view_of(obj)
        uid = obj["metadata"].get("uid", "")
        cached_view = self._view_cache.get(uid)
        if cached_view is not None and cached_view[0] is obj:
            return cached_view[1]
        stored_view = self._view_of(obj)
        view = self._adjusted_view(obj, limits, stored_view)
        view.queued = stored_view.queued
        if len(self._view_cache) >= _VIEW_CACHE_MAX:
            self._view_cache.clear()
        self._view_cache[uid] = (obj, view)
        return view

    def hypothetical_view(self, obj: Obj, current_view: WorkloadView) -> WorkloadView:
        """Parse and adjust a hypothetically changed Workload; namespace and queue time are those of `current_view`."""
        limits = self._limits.get(current_view.namespace)
        view = self._adjusted_view(obj, limits)
        view.queued = current_view.queued
        return view

    def _has_overhead(self, obj: Obj) -> bool:
        return bool(self._overheads) and any(name in self._overheads for name in _runtime_classes(obj))

    @property
    def is_charging(self) -> bool:
        """Whether the requests in the views are not those of the pods, because the Configuration changes them."""
        return self._charging is not None

    def _adjusted_view(
        self, obj: Obj, limits: NamespaceLimits | None, stored_view: WorkloadView | None = None
    ) -> WorkloadView:
        if self._has_overhead(obj):
            obj, stored_view = with_overheads(obj, self._overheads), None
        if limits is None:
            view = self._new_view(obj, stored_view)
        else:
            obj = with_default_resources(obj, limits, own_limits_first=self._rules.is_current)
            view = self._limited_view(obj, limits)
        if self._charging is not None:
            view.pod_sets = self._charging.charge(obj, view.pod_sets)
        return view

    def _new_view(self, obj: Obj, stored_view: WorkloadView | None = None) -> WorkloadView:
        view = WorkloadView(obj, stored_view)
        if self._rules.ignores_pod_set_names:
            view.ignore_pod_set_names()
        return view

    def _limited_view(self, adjusted_workload: Obj, limits: NamespaceLimits) -> WorkloadView:
        view = self._new_view(adjusted_workload)
        view.limit_range_violation = describe_limit_violations(adjusted_workload, limits)
        pods, priority, pod_counts = view.shape
        # Two cases: within or out of bounds.
        view.shape = pods + view.limit_range_violation.encode(), priority, pod_counts
        return view


def _runtime_classes(obj: Obj) -> list[str]:
    pod_specs = [(each.get("template") or {}).get("spec") or {} for each in obj["spec"].get("podSets") or ()]
    return [spec["runtimeClassName"] for spec in pod_specs if spec.get("runtimeClassName")]


def _nameless_view_of(view_of: Callable[[Obj], WorkloadView]) -> Callable[[Obj], WorkloadView]:
    """Return a function like `view_of` for which names of pod sets do not make Workloads different."""

    def nameless_view(obj: Obj) -> WorkloadView:
        shared_view = view_of(obj)
        view = WorkloadView(obj, shared_view)  # a copy, because other caches may use other rules
        view.queued = shared_view.queued
        view.ignore_pod_set_names()
        return view

    return nameless_view


# Workload priority: from the WorkloadPriorityClass of the job, else the PriorityClass of its pods, else the default.
#
# Source: pkg/util/priority/priority.go of Kueue.


class WorkloadPriority(NamedTuple):
    """A Workload's priority value, and its `priorityClassRef` (None without a priority class)."""

    value: int
    class_ref: Mapping[str, str] | None


class MissingPriorityClass(NamedTuple):
    """The key of a priority class that does not exist, although a job refers to it."""

    key: Key


def resolve_priority(job: Obj, pod_class: str, reader: Reader) -> WorkloadPriority | MissingPriorityClass:
    """Return the priority for a job's Workload; MissingPriorityClass if the job's priority class does not exist.

    `pod_class` is the PriorityClass that the job names for its pods; '' if it names none.
    """
    key = priority_class_key(job, pod_class)
    if key is None:
        return _default_priority(reader)
    priority_class = reader.get(key)
    return MissingPriorityClass(key) if priority_class is None else _priority_from_class(key, priority_class)


def priority_class_key(job: Obj, pod_class: str) -> Key | None:
    """Return the key of the priority class in a job's label, else of the PriorityClass `pod_class`; None if neither."""
    name = label(job, well_known.PRIORITY_CLASS)
    if name:
        return Key(scheme.WORKLOAD_PRIORITY_CLASS, "", name)
    return Key(scheme.PRIORITY_CLASS, "", pod_class) if pod_class else None


def first_priority_class(templates: Iterable[Mapping[str, Any]]) -> str:
    """Return the first PriorityClass that a pod template names; '' if none does."""
    names = ((template.get("spec") or {}).get("priorityClassName") for template in templates)
    return next((name for name in names if name), "")


def priority_class_name(workload: Obj) -> str:
    """Return the priority class name in a Workload's `priorityClassRef`; '' if it has none."""
    name: str = (workload["spec"].get("priorityClassRef") or {}).get("name", "")
    return name


def follows_priority_label(workload: Obj, has_quota: bool) -> bool:
    """Return whether a Workload's priority follows the priority class label of its job.

    It does if the Workload has a WorkloadPriorityClass, or if it has neither a priority class nor quota.
    """
    ref = workload["spec"].get("priorityClassRef")
    return not has_quota if ref is None else ref.get("kind") == "WorkloadPriorityClass"


def _default_priority(reader: Reader) -> WorkloadPriority:
    default = find_global_default(reader.list(scheme.PRIORITY_CLASS))
    return WorkloadPriority(0, None) if default is None else _priority_from_class(key_of(default), default)


def _priority_from_class(key: Key, priority_class: Obj) -> WorkloadPriority:
    kind, _, api_group = key.kind.partition(".")
    return WorkloadPriority(priority_class["value"], {"group": api_group, "kind": kind, "name": key.name})


# Source: pkg/controller/core/workloadpriorityclass_controller.go of Kueue. Finished Workloads are not changed.


class PriorityClassValues:
    """Controller that propagates a changed value of a WorkloadPriorityClass to its Workloads."""

    name = "workload-priority-class"
    rank = 0
    kinds = (scheme.WORKLOAD_PRIORITY_CLASS, scheme.WORKLOAD)

    def __init__(self) -> None:
        self._workloads: dict[str, dict[Key, None]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of a WorkloadPriorityClass that was created or whose value changed; () for other events."""
        if event.key.kind == scheme.WORKLOAD:
            self._record_workload_class(event)
            return ()
        is_unchanged = event.old is not None and event.old["value"] == event.obj["value"]
        return () if is_unchanged or event.type is EventType.DELETED else (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Set the value of a WorkloadPriorityClass as the priority of its Workloads."""
        priority_class = reader.get(key)
        if priority_class is None:
            return ReconcileResult()
        workloads = [obj for k in self._workloads.get(key.name, ()) if (obj := reader.get(k)) is not None]
        changed_workloads = [
            w
            for w in workloads
            if _workload_priority_class(w) == key.name and w["spec"].get("priority") != priority_class["value"]
        ]
        return ReconcileResult(
            [Update(with_path(w, ("spec", "priority"), priority_class["value"])) for w in changed_workloads]
        )

    def _record_workload_class(self, event: WatchEvent) -> None:
        old_priority_class = _workload_priority_class(event.old) if event.old is not None else None
        new_class = _workload_priority_class(event.obj)
        is_gone = event.type is EventType.DELETED or (new_class is not None and workload_view(event.obj).finished)
        for name in (old_priority_class, new_class):
            if name is not None and (is_gone or name != new_class):
                self._workloads.get(name, {}).pop(event.key, None)
        if new_class is not None and not is_gone:
            self._workloads.setdefault(new_class, {})[event.key] = None


def _workload_priority_class(workload: Obj) -> str | None:
    ref = workload["spec"].get("priorityClassRef")
    return ref["name"] if ref is not None and ref.get("kind") == "WorkloadPriorityClass" else None
