"""What other objects add to a Workload: LimitRange defaults and bounds, RuntimeClass overhead, priority.

Sources: Kueue's pkg/workload/resources.go (AdjustResources, ValidateLimitRange) and pkg/util/limitrange. Only the view
of a Workload is adjusted; the object itself is unchanged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.admission_plugins.built_in import default_class
from batchyard.admission_plugins.limit_ranges import limits_of
from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, key_of, label, with_path
from batchyard.api.views.node import container_limits, container_requests, pod_total
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, Reader, Update, WatchEvent
from batchyard.interfaces.controller import ReconcileResult

Amounts = Mapping[str, int]


class NamespaceLimits(NamedTuple):
    """The combined LimitRanges of a Namespace."""

    #: Default requests and limits of containers without their own.
    requests: Mapping[str, Any]
    limits: Mapping[str, Any]
    #: Bounds by type, Container or Pod, in billionths.
    most: Mapping[str, Amounts]
    least: Mapping[str, Amounts]


def combine_limit_ranges(ranges: Sequence[Obj]) -> NamespaceLimits:
    """Combine LimitRanges: the tightest bounds, and the first defaults."""
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    most: dict[str, dict[str, int]] = {}
    least: dict[str, dict[str, int]] = {}
    for limit in (each for limit_range in ranges for each in limits_of(limit_range)):
        kind = limit["type"]
        if kind == "Container":
            requests = {**(limit.get("defaultRequest") or {}), **requests}
            limits = {**(limit.get("default") or {}), **limits}
        _tighten(most.setdefault(kind, {}), limit.get("max") or {}, min)
        _tighten(least.setdefault(kind, {}), limit.get("min") or {}, max)
    return NamespaceLimits(requests, limits, most, least)


def _tighten(bounds: dict[str, int], more: Mapping[str, Any], choose: Callable[[int, int], int]) -> None:
    for name, text in more.items():
        nano = meta.parse(text)
        bounds[name] = choose(bounds.get(name, nano), nano)


def with_default_resources(workload: Obj, limits: NamespaceLimits) -> Obj:
    """Return the Workload with default requests and limits for containers without their own, as its pods will have."""
    if not limits.requests and not limits.limits:
        return workload
    filled = [_filled_pods(each, limits) for each in _pod_sets(workload)]
    return {**workload, "spec": {**workload["spec"], "podSets": filled}}


def with_overheads(workload: Obj, overheads: Mapping[str, Mapping[str, str]]) -> Obj:
    """Return the Workload with the overhead of each RuntimeClass, for pods without their own overhead."""
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
    """Return the pod sets; Kueue accepts a Workload without any."""
    return workload["spec"].get("podSets") or ()


def _filled_pods(pod_set: Obj, limits: NamespaceLimits) -> Obj:
    template = pod_set["template"]
    spec = dict(template["spec"])
    for field in ("initContainers", "containers"):
        if spec.get(field):
            spec[field] = [_filled(container, limits) for container in spec[field]]
    return {**pod_set, "template": {**template, "spec": spec}}


def _filled(container: Obj, limits: NamespaceLimits) -> Obj:
    own = container.get("resources") or {}
    bound = {**limits.limits, **(own.get("limits") or {})}
    asked = {**limits.requests, **(own.get("requests") or {})}
    return {**container, "resources": {**own, "limits": bound, "requests": asked}}


def out_of_bounds(workload: Obj, limits: NamespaceLimits) -> str:
    """Return why its pods would be rejected, in Kueue's words; empty if they would not."""
    faults = [
        f"{path}: Invalid value: [{','.join(names)}]: requests must not be {what}"
        for i, pod_set in enumerate(_pod_sets(workload))
        for path, names, what in _faults(pod_set["template"]["spec"], limits, f"spec.podSets[{i}].template.spec")
    ]
    if not faults:
        return ""
    listed = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
    return f"resources didn't satisfy LimitRange constraints: {listed}"


def _faults(spec: Mapping[str, Any], limits: NamespaceLimits, path: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield the path, the resources out of bounds, and the violated bound."""
    for field in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(field) or ()):
            requests, bounds = container_requests(container), container_limits(container)
            least = {name: min(amount, bounds.get(name, amount)) for name, amount in requests.items()}
            most = {name: max(amount, bounds.get(name, amount)) for name, amount in requests.items()}
            yield from _beyond(limits, "Container", most, least, f"{path}.{field}[{i}]")
    total = pod_total(spec, container_requests)
    yield from _beyond(limits, "Pod", total, total, path)


def _beyond(
    limits: NamespaceLimits, kind: str, most: Amounts, least: Amounts, path: str
) -> Iterator[tuple[str, list[str], str]]:
    above = _greater(most, limits.most.get(kind, {}))
    if above:
        yield path, above, "above the limitRange max"
    below = _greater(limits.least.get(kind, {}), least)
    if below:
        yield path, below, "below the limitRange min"


def _greater(amounts: Amounts, others: Amounts) -> list[str]:
    """Return the resources with a greater amount than in `others`, as far as those have one."""
    return sorted(f'"{name}"' for name, amount in amounts.items() if name in others and amount > others[name])


# --- adjusted views ---
#
# Workloads adjusted by LimitRanges and RuntimeClasses: the view that decisions use for pending Workloads.
#
# Source: AdjustResources in pkg/workload/resources.go of Kueue.


_DELETED = EventType.DELETED
_REMEMBERED_MAX = 16384


class AdjustedViews:
    """The LimitRanges and RuntimeClass overheads, with a cache of the views adjusted by them."""

    def __init__(self, view_of: Callable[[Obj], WorkloadView]) -> None:
        self._view_of = view_of
        self._ranges: dict[str, dict[Key, Obj]] = {}
        self._limits: dict[str, NamespaceLimits] = {}
        #: The adjusted views by uid, each with its Workload.
        self._made: dict[str, tuple[Obj, WorkloadView]] = {}
        #: Namespaces whose Workloads need a new view.
        self._changed: dict[str, None] = {}
        #: Pod overhead by RuntimeClass, and the classes that changed.
        self._overheads: dict[str, Mapping[str, str]] = {}
        self._changed_classes: dict[str, None] = {}

    def observe(self, event: WatchEvent) -> None:
        """Process a change of a LimitRange."""
        namespace = event.key.namespace
        ranges = self._ranges.setdefault(namespace, {})
        ranges.pop(event.key, None)
        if event.type is not _DELETED:
            ranges[event.key] = event.obj
        if ranges:
            self._limits[namespace] = combine_limit_ranges([ranges[key] for key in sorted(ranges)])
        else:
            del self._ranges[namespace]
            self._limits.pop(namespace, None)
        self._made.clear()
        self._changed[namespace] = None

    def observe_class(self, event: WatchEvent) -> None:
        """Process a change of a RuntimeClass."""
        name, overhead = event.key.name, (event.obj.get("overhead") or {}).get("podFixed") or {}
        if event.type is _DELETED:
            overhead = {}
        if overhead == self._overheads.get(name, {}):
            return
        self._overheads.pop(name, None)
        if overhead:
            self._overheads[name] = overhead
        self._made.clear()
        self._changed_classes[name] = None

    @property
    def has_changed(self) -> bool:
        """Whether some Workloads need a new view."""
        return bool(self._changed or self._changed_classes)

    def outdated(self, kind: str, reader: Reader) -> list[Obj]:
        """Return the Workloads that need a new view."""
        changed, self._changed = self._changed, {}
        classes, self._changed_classes = self._changed_classes, {}
        found = [obj for namespace in changed for obj in reader.list(kind, namespace)]
        others = reader.list(kind) if classes else ()
        return [*found, *(obj for obj in others if any(name in classes for name in _classes_of(obj)))]

    def view(self, obj: Obj) -> WorkloadView:
        """Return the view of a Workload."""
        limits = self._limits.get(obj["metadata"].get("namespace", "")) if self._limits else None
        if limits is None and not self._has_overhead(obj):
            return self._view_of(obj)
        uid = obj["metadata"].get("uid", "")
        known = self._made.get(uid)
        if known is not None and known[0] is obj:
            return known[1]
        view = self._adjusted_view(obj, limits)
        view.queued = self._view_of(obj).queued
        if len(self._made) >= _REMEMBERED_MAX:
            self._made.clear()
        self._made[uid] = (obj, view)
        return view

    def imagined(self, obj: Obj, real: WorkloadView) -> WorkloadView:
        """Return the view of a hypothetical Workload, uncached; `real` is the view of the existing one."""
        limits = self._limits.get(real.namespace)
        view = self._adjusted_view(obj, limits)
        view.queued = real.queued
        return view

    def _has_overhead(self, obj: Obj) -> bool:
        return bool(self._overheads) and any(name in self._overheads for name in _classes_of(obj))

    def _adjusted_view(self, obj: Obj, limits: NamespaceLimits | None) -> WorkloadView:
        if self._has_overhead(obj):
            obj = with_overheads(obj, self._overheads)
        return WorkloadView(obj) if limits is None else _limited_view(obj, limits)


def _classes_of(obj: Obj) -> list[str]:
    """Return the RuntimeClasses that the pods of a Workload name."""
    specs = [(each.get("template") or {}).get("spec") or {} for each in obj["spec"].get("podSets") or ()]
    return [spec["runtimeClassName"] for spec in specs if spec.get("runtimeClassName")]


def _limited_view(obj: Obj, limits: NamespaceLimits) -> WorkloadView:
    adjusted = with_default_resources(obj, limits)
    view = WorkloadView(adjusted)
    view.out_of_bounds = out_of_bounds(adjusted, limits)
    pods, priority, counts = view.shape
    view.shape = pods + view.out_of_bounds.encode(), priority, counts  # two cases: within or out of bounds
    return view


# --- priority ---
#
# Workload priority: from the WorkloadPriorityClass of the job, else the PriorityClass of its pods, else the default.
#
# Source: pkg/util/priority/priority.go of Kueue.


class Priority(NamedTuple):
    """A priority and its class, as referenced by Workloads."""

    value: int
    class_ref: Mapping[str, str] | None


class MissingClass(NamedTuple):
    """The class that should give the priority does not exist."""

    key: Key


def resolve_priority(job: Obj, templates: Sequence[Mapping[str, Any]], reader: Reader) -> Priority | MissingClass:
    """Return the priority of a job's Workload, or the missing class."""
    key = class_key(job, templates)
    if key is None:
        return _default_priority(reader)
    found = reader.get(key)
    return MissingClass(key) if found is None else _from_class(key, found)


def class_key(job: Obj, templates: Sequence[Mapping[str, Any]]) -> Key | None:
    """Return the class named by the job's label, or by the first pod template that names one."""
    name = label(job, well_known.PRIORITY_CLASS)
    if name:
        return Key(scheme.WORKLOAD_PRIORITY_CLASS, "", name)
    names = ((template.get("spec") or {}).get("priorityClassName") for template in templates)
    return next((Key(scheme.PRIORITY_CLASS, "", name) for name in names if name), None)


def class_name(workload: Obj) -> str:
    """Return the name of the class of a Workload's priority, or ''."""
    name: str = (workload["spec"].get("priorityClassRef") or {}).get("name", "")
    return name


def follows_label(workload: Obj, reserved: bool) -> bool:
    """Report whether its priority follows its job's label; not if it came from a pod's class, or quota came first."""
    ref = workload["spec"].get("priorityClassRef")
    return not reserved if ref is None else ref.get("kind") == "WorkloadPriorityClass"


def _default_priority(reader: Reader) -> Priority:
    default = default_class(reader.list(scheme.PRIORITY_CLASS))
    return Priority(0, None) if default is None else _from_class(key_of(default), default)


def _from_class(key: Key, found: Obj) -> Priority:
    kind, _, group = key.kind.partition(".")
    return Priority(found["value"], {"group": group, "kind": kind, "name": key.name})


# --- priority classes ---
#
# Propagates the value of a WorkloadPriorityClass to its Workloads.
#
# Source: pkg/controller/core/workloadpriorityclass_controller.go of Kueue. Finished Workloads are not changed.


class PriorityClassValues:
    """Propagates a changed value of a WorkloadPriorityClass to its Workloads."""

    name = "workload-priority-class"
    rank = 0
    kinds = (scheme.WORKLOAD_PRIORITY_CLASS, scheme.WORKLOAD)

    def __init__(self) -> None:
        self._workloads: dict[str, dict[Key, None]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the class when it is created or its value changes."""
        if event.key.kind == scheme.WORKLOAD:
            self._note(event)
            return ()
        same = event.old is not None and event.old["value"] == event.obj["value"]
        return () if same or event.type is EventType.DELETED else (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Set the value on every Workload of the class."""
        found = reader.get(key)
        if found is None:
            return ReconcileResult()
        workloads = [obj for k in self._workloads.get(key.name, ()) if (obj := reader.get(k)) is not None]
        changed = [w for w in workloads if _class_of(w) == key.name and w["spec"].get("priority") != found["value"]]
        return ReconcileResult([Update(with_path(w, ("spec", "priority"), found["value"])) for w in changed])

    def _note(self, event: WatchEvent) -> None:
        old_class = _class_of(event.old) if event.old is not None else None
        new_class = _class_of(event.obj)
        gone = event.type is EventType.DELETED or (new_class is not None and workload_view(event.obj).finished)
        for name in (old_class, new_class):
            if name is not None and (gone or name != new_class):
                self._workloads.get(name, {}).pop(event.key, None)
        if new_class is not None and not gone:
            self._workloads.setdefault(new_class, {})[event.key] = None


def _class_of(workload: Obj) -> str | None:
    """Return the WorkloadPriorityClass of a Workload's priority."""
    ref = workload["spec"].get("priorityClassRef")
    return ref["name"] if ref is not None and ref.get("kind") == "WorkloadPriorityClass" else None
