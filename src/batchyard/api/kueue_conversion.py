"""Conversion of Kueue's kinds between v1beta1 and v1beta2: the parts that differ.

Sources: Kueue's apis/kueue/v1beta1/*_conversion.go.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from batchyard.api.meta import Obj, with_metadata, with_path
from batchyard.api.validation.topology import assignment_faults
from batchyard.api.well_known import HOSTNAME

#: The fields of a part in one version; empty if none is set.
Fragment: TypeAlias = Mapping[str, Any]
Change: TypeAlias = Callable[[Fragment], Fragment]

#: Decoding an original may raise any of these, because anyone can write annotations.
_MALFORMED: Final = (TypeError, ValueError, KeyError, IndexError, AttributeError)


class PartLocation(Protocol):
    """The location of a part in a version."""

    def read(self, obj: Obj) -> Fragment:
        """Return the fields of the part."""

    def write(self, obj: Obj, fragment: Fragment) -> Obj:
        """Return the object with only these fields in the part."""


@dataclass(frozen=True, slots=True)
class FieldsAt:
    """Some fields of the mapping at a path."""

    path: tuple[str, ...]
    names: tuple[str, ...]
    #: Default values, which are equivalent to absence and need not be kept.
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, obj: Obj) -> Fragment:
        """Return the fields that are set to other values than their defaults."""
        holder = self._holder(obj)
        given = {name: holder[name] for name in self.names if name in holder} if holder is not None else {}
        return {name: value for name, value in given.items() if self.defaults.get(name) != value or value is None}

    def write(self, obj: Obj, fragment: Fragment) -> Obj:
        """Return the object with only these of the fields; unchanged if the mapping itself is missing."""
        holder = self._holder(obj)
        if holder is None:
            return obj
        others = {name: value for name, value in holder.items() if name not in self.names}
        mine = {name: fragment[name] for name in self.names if name in fragment}
        return obj if not mine and len(others) == len(holder) else with_path(obj, self.path, {**others, **mine})

    def _holder(self, obj: Obj) -> Mapping[str, Any] | None:
        """Return the mapping with the fields."""
        holder: Any = obj
        for name in self.path:
            holder = holder.get(name) if isinstance(holder, Mapping) else None
        return holder if isinstance(holder, Mapping) else None


@dataclass(frozen=True, slots=True)
class ConversionPart:
    """A part of a kind in its two versions."""

    name: str
    old: PartLocation
    new: PartLocation
    upgrade: Change
    downgrade: Change


def renamed(path: tuple[str, ...], old: str, new: str) -> ConversionPart:
    """Return the part for a field that was renamed."""
    return ConversionPart(
        ".".join((*path, new)),
        FieldsAt(path, (old,)),
        FieldsAt(path, (new,)),
        lambda current: {new: current[old]} if current else {},
        lambda current: {old: current[new]} if current else {},
    )


def old_only(path: tuple[str, ...], name: str, **defaults: Any) -> ConversionPart:
    """Return the part for a field that the newer version lacks."""
    return ConversionPart(
        ".".join((*path, name)), FieldsAt(path, (name,), defaults), FieldsAt(path, ()), _nothing, _nothing
    )


def new_only(path: tuple[str, ...], name: str) -> ConversionPart:
    """Return the part for a field that the older version lacks."""
    return ConversionPart(".".join((*path, name)), FieldsAt(path, ()), FieldsAt(path, (name,)), _nothing, _nothing)


def _nothing(_: Fragment) -> Fragment:
    """Return the empty fragment of a version without the field."""
    return {}


def flipped(part: ConversionPart) -> ConversionPart:
    """Return the part with both versions swapped."""
    return ConversionPart(part.name, part.new, part.old, part.downgrade, part.upgrade)


def converted(obj: Obj, parts: Sequence[ConversionPart], *, taken: str, kept: str) -> Obj:
    """Return the object with its parts in the form of the newer version.

    Originals of the newer version are restored from the annotation `taken`; originals that it cannot represent are
    stored in `kept`.
    """
    originals, left = _originals(obj, taken), {}
    for part in parts:
        current = part.old.read(obj)
        now = _taken_up(originals.get(part.name), part, current)
        if now is None:
            now = part.upgrade(current)
        if part.downgrade(now) != current:
            left[part.name] = current
        obj = part.new.write(part.old.write(obj, {}), now)
    return _annotated(obj, taken, kept, left)


def _taken_up(original: Any, part: ConversionPart, current: Fragment) -> Fragment | None:
    """Return the original if it still matches the part, else None."""
    if not isinstance(original, Mapping):
        return None
    try:
        return original if part.downgrade(original) == current else None
    except _MALFORMED:
        return None


def _originals(obj: Obj, annotation: str) -> Mapping[str, Any]:
    """Return the originals in an annotation."""
    text = (obj["metadata"].get("annotations") or {}).get(annotation)
    try:
        originals = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return originals if isinstance(originals, Mapping) else {}


def _annotated(obj: Obj, taken: str, kept: str, left: Mapping[str, Any]) -> Obj:
    """Return the object with its originals in `kept`, and without `taken`."""
    before = obj["metadata"].get("annotations") or {}
    annotations = {name: value for name, value in before.items() if name not in {taken, kept}}
    if left:
        annotations[kept] = msgspec.json.encode(left, order="sorted").decode()
    if annotations == before:
        return obj
    return with_metadata(obj, annotations=annotations or None)


_SPEC: Final = ("spec",)
_STATUS: Final = ("status",)


def _checks_up(old: Fragment) -> Fragment:
    """Convert a list of check names to a strategy for all flavors; it takes precedence over a given strategy."""
    if names := old.get("admissionChecks"):
        return {"admissionChecksStrategy": {"admissionChecks": [{"name": name} for name in names]}}
    strategy = old.get("admissionChecksStrategy")
    return {"admissionChecksStrategy": strategy} if strategy and strategy.get("admissionChecks") else {}


def _checks_down(new: Fragment) -> Fragment:
    """Return the strategy unchanged: both versions have it."""
    return dict(new)


def _fungibility(name: str, old_word: str) -> ConversionPart:
    """Return the conversion of a fungibility field, whose value for stopping the search was renamed."""
    fields = FieldsAt(("spec", "flavorFungibility"), (name,))
    return ConversionPart(
        f"spec.flavorFungibility.{name}",
        fields,
        fields,
        lambda fragment: {name: "MayStopSearch"} if fragment == {name: old_word} else fragment,
        dict,
    )


def _source_up(old: Fragment) -> Fragment:
    """Merge the ways to reach a cluster into one source; an empty location counts as none."""
    if not old:
        return {}
    kube_config, profile = old.get("kubeConfig") or {}, old.get("clusterProfileRef")
    source = {"kubeConfig": kube_config} if kube_config.get("location") else {}
    return {"clusterSource": {**source, "clusterProfileRef": profile} if profile is not None else source}


def _source_down(new: Fragment) -> Fragment:
    """Return the kubeconfig, which the older version always has, and the profile if there is one."""
    if "clusterSource" not in new:
        return {}
    source = new["clusterSource"] or {}
    kube_config = source.get("kubeConfig") or {"location": "", "locationType": "Secret"}
    profile = source.get("clusterProfileRef")
    return {"kubeConfig": kube_config, **({} if profile is None else {"clusterProfileRef": profile})}


_FAIR_SHARING: Final = old_only(("status", "fairSharing"), "admissionFairSharingStatus")

CLUSTER_QUEUE_PARTS: Final[Sequence[ConversionPart]] = (
    renamed(_SPEC, "cohort", "cohortName"),
    ConversionPart(
        "spec.admissionChecksStrategy",
        FieldsAt(_SPEC, ("admissionChecks", "admissionChecksStrategy")),
        FieldsAt(_SPEC, ("admissionChecksStrategy",)),
        _checks_up,
        _checks_down,
    ),
    _fungibility("whenCanBorrow", "Borrow"),
    _fungibility("whenCanPreempt", "Preempt"),
    new_only(_SPEC, "concurrentAdmissionPolicy"),
    old_only(_STATUS, "pendingWorkloadsStatus"),
    _FAIR_SHARING,
)

COHORT_PARTS: Final[Sequence[ConversionPart]] = (_FAIR_SHARING,)

LOCAL_QUEUE_PARTS: Final[Sequence[ConversionPart]] = (
    renamed(_STATUS, "flavorUsage", "flavorsUsage"),
    old_only(_STATUS, "flavors"),
)

ADMISSION_CHECK_PARTS: Final[Sequence[ConversionPart]] = (old_only(_SPEC, "retryDelayMinutes", retryDelayMinutes=15),)

MULTI_KUEUE_CONFIG_PARTS: Final[Sequence[ConversionPart]] = (new_only(_SPEC, "quotaManagement"),)

MULTI_KUEUE_CLUSTER_PARTS: Final[Sequence[ConversionPart]] = (
    ConversionPart(
        "spec.clusterSource",
        FieldsAt(_SPEC, ("kubeConfig", "clusterProfileRef")),
        FieldsAt(_SPEC, ("clusterSource",)),
        _source_up,
        _source_down,
    ),
)


_SLICE_DOMAINS_MAX: Final = 100_000
_SLICES_MAX: Final = 1_000


def compressed(levels: Sequence[str], domains: Sequence[Obj]) -> list[dict[str, Any]]:
    """Return slices of domains; each domain has a value for every level and a count of pods."""
    by_prefix = [_slice(levels, run) for run in _runs(levels, domains)]
    if len(by_prefix) <= 1 or len(domains) > _SLICE_DOMAINS_MAX:
        return by_prefix
    whole = [_slice(levels, domains)]
    return whole if len(msgspec.json.encode(whole)) < len(msgspec.json.encode(by_prefix)) else by_prefix


def expanded(slices: Sequence[Obj]) -> list[dict[str, Any]]:
    """Return the domains of slices, in order."""
    return [
        {"values": [_value(values, i) for values in part["valuesPerLevel"]], "count": _count(part["podCounts"], i)}
        for part in slices
        for i in range(part["domainCount"])
    ]


def _value(values: Obj, i: int) -> str:
    """Return the value of a level in the i-th domain of a slice."""
    if (universal := values.get("universal")) is not None:
        return str(universal)
    own = values["individual"]
    return f"{own.get('prefix') or ''}{own['roots'][i]}{own.get('suffix') or ''}"


def _count(counts: Obj, i: int) -> int:
    """Return the pod count of the i-th domain of a slice."""
    universal = counts.get("universal")
    return int(counts["individual"][i] if universal is None else universal)


def _slice(levels: Sequence[str], domains: Sequence[Obj]) -> dict[str, Any]:
    """Return one slice with all the domains."""
    counts = [domain["count"] for domain in domains]
    same = all(count == counts[0] for count in counts)
    return {
        "domainCount": len(domains),
        "podCounts": {"universal": counts[0]} if same else {"individual": counts},
        "valuesPerLevel": [_values([domain["values"][i] for domain in domains]) for i in range(len(levels))],
    }


def _values(values: Sequence[str]) -> dict[str, Any]:
    """Return the values of one level: a single common value, or the common prefix and suffix with individual roots."""
    if all(value == values[0] for value in values):
        return {"universal": values[0]}
    suffix = _common_prefix([value[::-1] for value in values])[::-1]
    # The prefix and suffix must not overlap in a short value, as in `aba` beside `ababa`.
    prefix = _common_prefix(values)[: min(map(len, values)) - len(suffix)]
    roots = [value[len(prefix) : len(value) - len(suffix)] for value in values]
    common = {name: part for name, part in (("prefix", prefix), ("suffix", suffix)) if part}
    return {"individual": {**common, "roots": roots}}


def _common_prefix(values: Sequence[str]) -> str:
    """Return the common prefix of all values: the common prefix of the smallest and the largest."""
    first, last = min(values), max(values)
    length = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[:length]


def _runs(levels: Sequence[str], domains: Sequence[Obj]) -> list[Sequence[Obj]]:
    """Group neighbouring domains whose hosts have a common prefix; one group if the lowest level is not the host."""
    keys = [""] * len(domains)
    if len(domains) > 1 and levels and levels[-1] == HOSTNAME:
        keys = _prefix_keys([domain["values"][-1] for domain in domains])
    starts = _starts(keys)
    return [domains[start:end] for start, end in pairwise([*starts, len(domains)])]


def _starts(keys: Sequence[str]) -> list[int]:
    """Return the start indices of slices: at each new key, and at the maximum size of a slice."""
    starts: list[int] = []
    for i, key in enumerate(keys):
        if not starts or key != keys[i - 1] or i - starts[-1] == _SLICE_DOMAINS_MAX:
            starts.append(i)
    return starts


def _prefix_keys(hosts: Sequence[str]) -> list[str]:
    """Return the longest prefix of each host up to a hyphen that another host shares; shorter with too many slices."""
    prefixes = [[host[: i + 1] for i in range(len(host) - 1) if host[i] == "-"] for host in hosts]
    shared: dict[str, int] = {}
    for prefix in (prefix for each in prefixes for prefix in each):
        shared[prefix] = shared.get(prefix, 0) + 1
    for depth in range(max(map(len, prefixes)), 0, -1):
        keys = [next((p for p in reversed(each[:depth]) if shared[p] > 1), "") for each in prefixes]
        if len(_starts(keys)) <= _SLICES_MAX:
            return keys
    return [""] * len(hosts)


_SOURCES: Final[Mapping[str, tuple[str, str]]] = {
    "kueue.x-k8s.io/workloadpriorityclass": ("kueue.x-k8s.io", "WorkloadPriorityClass"),
    "scheduling.k8s.io/priorityclass": ("scheduling.k8s.io", "PriorityClass"),
}
_SOURCE_OF: Final = {reference: source for source, reference in _SOURCES.items()}
_LAYERS: Final = "podsetSliceRequiredTopologyConstraints"
_POD_SETS: Final = ("spec", "podSets")
_ASSIGNMENTS: Final = ("status", "admission", "podSetAssignments")


@dataclass(frozen=True, slots=True)
class ItemFields:
    """A field of each item of a list, by item name; `within` is the path in the item to the mapping with the field."""

    path: tuple[str, ...]
    field: str
    within: tuple[str, ...] = ()

    def read(self, obj: Obj) -> Fragment:
        """Return the field of each item that has it."""
        found = {}
        for item in self._items(obj) or ():
            holder = _at(item, self.within)
            if isinstance(holder, Mapping) and holder.get(self.field) is not None:
                found[item.get("name", "main")] = holder[self.field]
        return found

    def write(self, obj: Obj, fragment: Fragment) -> Obj:
        """Return the object with the field set in each item as the fragment says."""
        items = self._items(obj)
        if not items or fragment == self.read(obj):
            return obj
        return with_path(obj, self.path, [self._written(item, fragment) for item in items])

    def _written(self, item: Obj, fragment: Fragment) -> Obj:
        """Return one item with its field; items without the mapping for it stay unchanged."""
        if not isinstance(_at(item, self.within), Mapping):
            return item
        return with_path(item, (*self.within, self.field), fragment.get(item.get("name", "main")))

    def _items(self, obj: Obj) -> list[Obj] | None:
        """Return the items of the list."""
        items = _at(obj, self.path)
        return items if isinstance(items, list) else None


def _at(obj: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path, or None."""
    for name in path:
        obj = obj.get(name) if isinstance(obj, Mapping) else None
    return obj


def _class_up(old: Fragment) -> Fragment:
    """Convert name and source to a reference to the class; empty without either."""
    reference = _SOURCES.get(old.get("priorityClassSource") or "")
    name = old.get("priorityClassName")
    if reference is None or not name:
        return {}
    return {"priorityClassRef": {"group": reference[0], "kind": reference[1], "name": name}}


def _class_down(new: Fragment) -> Fragment:
    """Convert a reference to the name and the source of the class; empty for other kinds."""
    reference = new.get("priorityClassRef") or {}
    source = _SOURCE_OF.get((reference.get("group", ""), reference.get("kind", "")))
    return {"priorityClassName": reference["name"], "priorityClassSource": source} if source else {}


def _slices(assignment: Obj) -> Obj:
    """Convert an assignment to slices. If its domains do not match its levels, return it for validation to reject."""
    levels, domains = assignment.get("levels") or [], assignment.get("domains")
    if domains is None or any(len(domain["values"]) != len(levels) for domain in domains):
        return assignment
    others = {name: value for name, value in assignment.items() if name != "domains"}
    return {**others, "slices": compressed(levels, domains)}


def _domains(assignment: Obj) -> Obj:
    """Convert an assignment to domains. If its slices do not match its levels, return it unchanged."""
    if next(assignment_faults(assignment, ""), None) is not None:
        return assignment
    others = {name: value for name, value in assignment.items() if name != "slices"}
    return {**others, "domains": expanded(assignment["slices"])}


def _each(change: Callable[[Obj], Obj]) -> Callable[[Fragment], Fragment]:
    """Apply the change to every assignment."""
    return lambda fragment: {name: change(assignment) for name, assignment in fragment.items()}


PARTS: Final[Sequence[ConversionPart]] = (
    ConversionPart(
        "spec.priorityClassRef",
        FieldsAt(("spec",), ("priorityClassName", "priorityClassSource"), {"priorityClassSource": ""}),
        FieldsAt(("spec",), ("priorityClassRef",)),
        _class_up,
        _class_down,
    ),
    new_only(("spec",), "preemptionGates"),
    new_only(("status",), "preemptionGates"),
    renamed(("status",), "accumulatedPastExexcutionTimeSeconds", "accumulatedPastExecutionTimeSeconds"),
    ConversionPart(
        f"spec.podSets.topologyRequest.{_LAYERS}",
        FieldsAt(_POD_SETS, ()),
        ItemFields(_POD_SETS, _LAYERS, ("topologyRequest",)),
        lambda _: {},
        lambda _: {},
    ),
    ConversionPart(
        "status.admission.podSetAssignments.topologyAssignment",
        ItemFields(_ASSIGNMENTS, "topologyAssignment"),
        ItemFields(_ASSIGNMENTS, "topologyAssignment"),
        _each(_slices),
        _each(_domains),
    ),
)
