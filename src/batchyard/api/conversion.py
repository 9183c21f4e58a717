"""Lossless conversion of objects between API versions.

Objects are stored in the storage version. Fields that one version cannot represent are kept in an annotation
while the object has that version. Objects must be structurally valid in their version. Kueue's kinds have v1beta1 and
v1beta2, and v1beta2 is stored. The versions of ProvisioningRequests differ only in their name. Kueue's Configuration is
a file; both versions are read and converted to the newer one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from operator import is_
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from batchyard.api import scheme
from batchyard.api.meta import Obj, group_kind, with_metadata, with_path
from batchyard.api.schema.tables import NATIVE, Field, TypeScope, scope, scope_for
from batchyard.api.scheme import ServedKind
from batchyard.api.times import format_time, parse_time
from batchyard.api.validation.topology import assignment_faults
from batchyard.api.well_known import DISABLE_WAIT_FOR_PODS_READY, FINAL_SHARE, HOSTNAME, INITIAL_SHARE
from batchyard.base.instant import SECOND

# --- configuration ---
#
# Conversion of Kueue's Configuration from v1beta1 to v1beta2, which has no `enable` fields.
#
# A feature that is missing or disabled in v1beta1 is disabled in the result. waitForPodsReady is on by default in
# v1beta2, so its feature gate disables it.
# Source: apis/config/v1beta1/configuration_conversion.go and defaults.go of Kueue.


CONFIGURATION_OLD: Final = "config.kueue.x-k8s.io/v1beta1"
CONFIGURATION_STORAGE: Final = "config.kueue.x-k8s.io/v1beta2"
#: The default preemption strategies if v1beta1 enables fair sharing without naming any.
STRATEGIES: Final = (FINAL_SHARE, INITIAL_SHARE)


def configuration_in_storage_version(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a defaulted v1beta1 Configuration to v1beta2."""
    found = {key: value for key, value in obj.items() if key not in {"queueVisibility", "fairSharing"}}
    waits, fair = dict(found.pop("waitForPodsReady", {})), dict(obj.get("fairSharing") or {})
    if waits.pop("enable", False):
        found["waitForPodsReady"] = waits
    else:
        found["featureGates"] = {**(obj.get("featureGates") or {}), DISABLE_WAIT_FOR_PODS_READY: True}
    if fair.get("enable"):
        found["fairSharing"] = {"preemptionStrategies": fair.get("preemptionStrategies") or list(STRATEGIES)}
    if "integrations" in found:
        found["integrations"] = {k: v for k, v in found["integrations"].items() if k != "podOptions"}
    return {**found, "apiVersion": CONFIGURATION_STORAGE}


# --- parts ---
#
# Conversion framework: converts an object part by part without loss.
#
# A part is a set of fields that two versions represent differently. If a version cannot represent the other's value,
# the original is kept as JSON in an annotation, under the name of the part. The conversion back restores the original,
# unless the part was changed meanwhile: then the current value counts.


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


# --- kueue ---
#
# Fields of Workloads that differ between versions. Source: Kueue's apis/kueue/v1beta1/workload_conversion.go.


# --- queues ---
#
# Fields of all other kinds that differ between versions. Source: Kueue's apis/kueue/v1beta1/*_conversion.go.


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


# --- topology ---
#
# Topology assignments in the forms of both versions.
#
# v1beta1 lists single domains. v1beta2 groups them into slices that store common values once. Slices are split as
# upstream splits them: hosts with a common prefix together, if that makes the text smaller.
# Source: Kueue's pkg/util/tas.


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


OLD: Final = "kueue.x-k8s.io/v1beta1"
STORAGE: Final = "kueue.x-k8s.io/v1beta2"
#: On objects of the storage version: fields that only v1beta1 has.
OLD_ONLY: Final = "batchyard.dev/v1beta1-only"
#: On objects of v1beta1: fields that only the storage version has.
NEW_ONLY: Final = "batchyard.dev/v1beta2-only"

#: Versions with identical fields, each with the storage version.
_SAME: Final = {"autoscaling.x-k8s.io/v1beta1": "autoscaling.x-k8s.io/v1"}

_PARTS: Final[Mapping[str, Sequence[ConversionPart]]] = {
    scheme.CLUSTER_QUEUE: CLUSTER_QUEUE_PARTS,
    scheme.COHORT: COHORT_PARTS,
    scheme.LOCAL_QUEUE: LOCAL_QUEUE_PARTS,
    scheme.WORKLOAD: PARTS,
    scheme.ADMISSION_CHECK: ADMISSION_CHECK_PARTS,
    scheme.MULTI_KUEUE_CONFIG: MULTI_KUEUE_CONFIG_PARTS,
    scheme.MULTI_KUEUE_CLUSTER: MULTI_KUEUE_CLUSTER_PARTS,
}
_FLIPPED: Final = {kind: tuple(map(flipped, parts)) for kind, parts in _PARTS.items()}


def to_storage(obj: Obj) -> dict[str, Any]:
    """Convert an object to its storage version; return the same object if it already has that version."""
    version = obj["apiVersion"]
    if version in _SAME:
        return {**obj, "apiVersion": _SAME[version]}
    if version == CONFIGURATION_OLD:
        return configuration_in_storage_version(obj)
    if version != OLD:
        return obj if isinstance(obj, dict) else dict(obj)
    done = converted(obj, _PARTS.get(group_kind(obj), ()), taken=NEW_ONLY, kept=OLD_ONLY)
    return {**done, "apiVersion": STORAGE}


def from_storage(obj: Obj, api_version: str) -> dict[str, Any]:
    """Convert an object to another version (`group/version`); return the same object if it already has that version."""
    if obj["apiVersion"] == api_version:
        return obj if isinstance(obj, dict) else dict(obj)
    if _SAME.get(api_version) == obj["apiVersion"]:
        return {**obj, "apiVersion": api_version}
    if (obj["apiVersion"], api_version) != (STORAGE, OLD):
        raise ValueError(f"{obj['apiVersion']} {obj['kind']} has no version {api_version}")
    done = converted(obj, _FLIPPED.get(group_kind(obj), ()), taken=OLD_ONLY, kept=NEW_ONLY)
    return {**done, "apiVersion": OLD}


# --- wire times ---
#
# Wire format of times: whole seconds, as Kubernetes writes them, although the platform stores microseconds.
#
# An API server shows times in this form, and a client sends them in this form, because servers store custom resources
# as sent. Only the MicroTime fields of Kubernetes keep their fraction. A time that a client sends back as shown is
# replaced by the stored one, so that reading and writing an object does not lose precision. Source: apimachinery's
# metav1.Time.


TimeLocations: TypeAlias = "Mapping[str, TimeLocations]"
"""By field, the locations of times within it; a time itself has no fields."""

#: A time that is already written in whole seconds.
_WHOLE: Final = "ManagedFieldsEntry.time"
#: Each entry keeps an object and its shown form alive, also after its deletion.
_REMEMBERED_MAX: Final = 1024
_TIME: Final[TimeLocations] = {}
_SECONDS_END: Final = len("2026-01-01T00:00:00")
_MICRO_LENGTH: Final = len("2026-01-01T00:00:00.250000Z")
#: No object has a field with an empty name.
_NOWHERE: Final[TimeLocations] = {"": {}}


def in_whole_seconds(obj: dict[str, Any], places: TimeLocations) -> dict[str, Any]:
    """Return an object with the times at these places in whole seconds; itself if they are."""
    shown: dict[str, Any] = _cut(obj, places)
    return shown


def metadata_in_whole_seconds(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with its times in whole seconds; itself if they are."""
    shown: dict[str, Any] = _cut(metadata, times_of_metadata()["metadata"])
    return shown


class ShownTimesCache:
    """A bounded cache of shown forms, for objects that are shown repeatedly."""

    def __init__(self) -> None:
        #: By identity: the object, the places, and the shown form.
        self._known: dict[int, tuple[Any, TimeLocations, dict[str, Any]]] = {}

    def in_whole_seconds(self, obj: dict[str, Any], places: TimeLocations) -> dict[str, Any]:
        """Return an object with the times at these places in whole seconds; itself if they are."""
        known = self._known.get(id(obj))
        if known is not None and known[0] is obj and known[1] is places:
            return known[2]
        if len(self._known) >= _REMEMBERED_MAX:
            self._known.clear()
        shown = in_whole_seconds(obj, places)
        self._known[id(obj)] = obj, places, shown  # the object is kept, so that no other can have its identity
        return shown


@cache
def times_of(info: ServedKind, version: str) -> TimeLocations:
    """Return the places of times in a version of a kind that has field tables."""
    return _in_type(scope_for(info, version), info.kind, ())


@cache
def times_of_metadata() -> TimeLocations:
    """Return the places of times in objects of which only the metadata is known."""
    return {"metadata": _in_type(scope(NATIVE), "ObjectMeta", ())}


def as_stored(sent: Any, shown: Any, stored: Any) -> Any:
    """Return a sent value in which strings that equal the shown form are replaced by the stored ones."""
    if shown is stored:
        return sent
    if sent is shown:
        return stored
    if isinstance(stored, str):
        return stored if sent == shown else sent
    if isinstance(sent, Mapping) and isinstance(shown, Mapping) and isinstance(stored, Mapping):
        known = shown.keys() & stored.keys()
        return {k: as_stored(v, shown[k], stored[k]) if k in known else v for k, v in sent.items()}
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(shown) == len(stored):
        return [as_stored(*values) for values in zip(sent, shown, stored, strict=True)]
    return sent


def _cut(value: Any, places: TimeLocations) -> Any:
    if not places:
        return _whole(value) if isinstance(value, str) else value
    if isinstance(value, dict):
        changed: dict[str, Any] | None = None
        for field, within in places.items():
            old = value.get(field)
            if not old:
                continue
            new = _cut(old, within) if within or not isinstance(old, str) else _whole(old)
            if new is not old:
                changed = value.copy() if changed is None else changed
                changed[field] = new
        return value if changed is None else changed
    if not isinstance(value, list):
        return value
    items = [_cut(item, places) for item in value]
    return value if all(map(is_, items, value)) else items


def _whole(text: str) -> str:
    if "." not in text:
        return text
    if len(text) == _MICRO_LENGTH and text[_SECONDS_END] == "." and text[-1] == "Z":
        return f"{text[:_SECONDS_END]}Z"  # the format of format_time
    try:
        return format_time(parse_time(text) // SECOND * SECOND)
    except ValueError:
        return text


def _in_type(of: TypeScope, type_name: str, above: tuple[str, ...]) -> TimeLocations:
    """Return the places of times in a type; recursive types are not followed."""
    if type_name in above:
        return _NOWHERE
    found = {}
    for name, held in of.fields(type_name).items():
        places = _in_field(of, held, (*above, type_name))
        if places is not _NOWHERE and f"{type_name}.{name}" != _WHOLE:
            found[name] = places
    return found or _NOWHERE


def _in_field(of: TypeScope, field: Field, above: tuple[str, ...]) -> TimeLocations:
    held = field.element if field.is_list else field
    if held.expression == "time":
        return _TIME
    if not held.is_object:
        return _NOWHERE
    within, type_name = of.scope_of(held.expression)
    return _in_type(within, type_name, above)
