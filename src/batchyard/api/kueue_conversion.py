"""Conversion rules for the fields of Kueue's kinds that differ between v1beta1 and v1beta2.

A FieldConversion is a group of fields that are converted together. If a conversion would lose information, the original
fields are kept in an annotation, and the conversion back restores them.

Sources: Kueue's apis/kueue/v1beta1/*_conversion.go.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from batchyard.api.meta import Obj, with_metadata, with_path
from batchyard.api.validation.topology import assignment_errors
from batchyard.api.well_known import HOSTNAME

#: The values of the fields of a FieldConversion in one version; empty if none is set.
ObjectFragment: TypeAlias = Mapping[str, Any]
FragmentConverter: TypeAlias = Callable[[ObjectFragment], ObjectFragment]

#: The exceptions that malformed originals in annotations may cause: users can write annotations.
_MALFORMED_ORIGINAL_ERRORS: Final = (TypeError, ValueError, KeyError, IndexError, AttributeError)


class FieldLocation(Protocol):
    """Interface that reads and replaces the fields of a FieldConversion in objects of one API version."""

    def read(self, obj: Obj) -> ObjectFragment:
        """Return the values that the fields of the FieldConversion have in an object."""

    def write(self, obj: Obj, fragment: ObjectFragment) -> Obj:
        """Return the object with the fields of the FieldConversion replaced by those in `fragment`."""


@dataclass(frozen=True, slots=True)
class MappingFields:
    """The location of a FieldConversion's fields: named fields of the mapping at a path such as `spec`."""

    path: tuple[str, ...]
    names: tuple[str, ...]
    #: Default values, which mean the same as absent fields.
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, obj: Obj) -> ObjectFragment:
        """Return those of the named fields that are set in the object to values other than their defaults."""
        mapping = self._find_mapping(obj)
        set_fields = {name: mapping[name] for name in self.names if name in mapping} if mapping is not None else {}
        return {name: value for name, value in set_fields.items() if self.defaults.get(name) != value or value is None}

    def write(self, obj: Obj, fragment: ObjectFragment) -> Obj:
        """Return the object with the fields `names` set as in `fragment`; those not in `fragment` are removed.

        If the object does not have the mapping at `path`, the same object is returned.
        """
        old_mapping = self._find_mapping(obj)
        if old_mapping is None:
            return obj
        other_fields = {name: value for name, value in old_mapping.items() if name not in self.names}
        new_fields = {name: fragment[name] for name in self.names if name in fragment}
        return (
            obj
            if not new_fields and len(other_fields) == len(old_mapping)
            else with_path(obj, self.path, {**other_fields, **new_fields})
        )

    def _find_mapping(self, obj: Obj) -> Mapping[str, Any] | None:
        mapping: Any = obj
        for name in self.path:
            mapping = mapping.get(name) if isinstance(mapping, Mapping) else None
        return mapping if isinstance(mapping, Mapping) else None


@dataclass(frozen=True, slots=True)
class FieldConversion:
    """A group of fields that are converted together: their locations in both versions, and the conversions."""

    name: str
    old: FieldLocation
    new: FieldLocation
    upgrade: FragmentConverter
    downgrade: FragmentConverter


def renamed_field_conversion(path: tuple[str, ...], old: str, new: str) -> FieldConversion:
    """Return the FieldConversion for a field that was renamed from `old` to `new`."""
    return FieldConversion(
        ".".join((*path, new)),
        MappingFields(path, (old,)),
        MappingFields(path, (new,)),
        lambda fragment: {new: fragment[old]} if fragment else {},
        lambda fragment: {old: fragment[new]} if fragment else {},
    )


def removed_field_conversion(path: tuple[str, ...], name: str, **defaults: Any) -> FieldConversion:
    """Return the FieldConversion for a field that only the older version has; `defaults`: its default value, if any."""
    old, new = MappingFields(path, (name,), defaults), MappingFields(path, ())
    return FieldConversion(".".join((*path, name)), old, new, _convert_to_empty_fragment, _convert_to_empty_fragment)


def added_field_conversion(path: tuple[str, ...], name: str) -> FieldConversion:
    """Return the FieldConversion for a field that only the newer version has."""
    old, new = MappingFields(path, ()), MappingFields(path, (name,))
    return FieldConversion(".".join((*path, name)), old, new, _convert_to_empty_fragment, _convert_to_empty_fragment)


def _convert_to_empty_fragment(_: ObjectFragment) -> ObjectFragment:
    """Return no fields: the conversion of a field to a version that lacks the field."""
    return {}


def reverse_conversion(conversion: FieldConversion) -> FieldConversion:
    """Return the FieldConversion that converts the same fields in the opposite direction."""
    return FieldConversion(conversion.name, conversion.new, conversion.old, conversion.downgrade, conversion.upgrade)


def convert_fields(obj: Obj, conversions: Sequence[FieldConversion], *, restored_from: str, saved_to: str) -> Obj:
    """Return the object with the fields of `conversions` converted from their `old` to their `new` API version.

    Original fields that a reverse conversion saved in the annotation `restored_from` are restored, unless the fields
    have changed since then. Fields that the new version cannot represent are saved in the annotation `saved_to`.
    """
    original_fields, unrepresented_fields = _read_original_fields(obj, restored_from), {}
    for conversion in conversions:
        old_fields = conversion.old.read(obj)
        converted_fields = _restore_original(original_fields.get(conversion.name), conversion, old_fields)
        if converted_fields is None:
            converted_fields = conversion.upgrade(old_fields)
        if conversion.downgrade(converted_fields) != old_fields:
            unrepresented_fields[conversion.name] = old_fields
        obj = conversion.new.write(conversion.old.write(obj, {}), converted_fields)
    return _with_saved_originals(obj, restored_from, saved_to, unrepresented_fields)


def _restore_original(
    saved_fields: Any, conversion: FieldConversion, current_fields: ObjectFragment
) -> ObjectFragment | None:
    """Return the original fields saved by a reverse conversion if they still convert to `current_fields`, else None."""
    if not isinstance(saved_fields, Mapping):
        return None
    try:
        return saved_fields if conversion.downgrade(saved_fields) == current_fields else None
    except _MALFORMED_ORIGINAL_ERRORS:
        return None


def _read_original_fields(obj: Obj, annotation: str) -> Mapping[str, Any]:
    text = (obj["metadata"].get("annotations") or {}).get(annotation)
    try:
        original_fields = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return original_fields if isinstance(original_fields, Mapping) else {}


def _with_saved_originals(obj: Obj, restored_from: str, saved_to: str, unrepresented_fields: Mapping[str, Any]) -> Obj:
    old_annotations = obj["metadata"].get("annotations") or {}
    annotations = {name: value for name, value in old_annotations.items() if name not in {restored_from, saved_to}}
    if unrepresented_fields:
        annotations[saved_to] = msgspec.json.encode(unrepresented_fields, order="sorted").decode()
    if annotations == old_annotations:
        return obj
    return with_metadata(obj, annotations=annotations or None)


_SPEC_PATH: Final = ("spec",)
_STATUS_PATH: Final = ("status",)


def _upgrade_admission_checks(old: ObjectFragment) -> ObjectFragment:
    if names := old.get("admissionChecks"):
        return {"admissionChecksStrategy": {"admissionChecks": [{"name": name} for name in names]}}
    strategy = old.get("admissionChecksStrategy")
    return {"admissionChecksStrategy": strategy} if strategy and strategy.get("admissionChecks") else {}


def _downgrade_admission_checks(new: ObjectFragment) -> ObjectFragment:
    """Return a ClusterQueue's admissionChecksStrategy unchanged: v1beta1 has this field too."""
    return dict(new)


def _fungibility_conversion(name: str, old_value: str) -> FieldConversion:
    """Return the FieldConversion of a flavorFungibility field: `old_value` in v1beta1 is MayStopSearch in v1beta2."""
    fields = MappingFields(("spec", "flavorFungibility"), (name,))
    return FieldConversion(
        f"spec.flavorFungibility.{name}",
        fields,
        fields,
        lambda fragment: {name: "MayStopSearch"} if fragment == {name: old_value} else fragment,
        dict,
    )


def _upgrade_cluster_source(old: ObjectFragment) -> ObjectFragment:
    if not old:
        return {}
    kube_config, profile = old.get("kubeConfig") or {}, old.get("clusterProfileRef")
    cluster_source = {"kubeConfig": kube_config} if kube_config.get("location") else {}
    return {
        "clusterSource": {**cluster_source, "clusterProfileRef": profile} if profile is not None else cluster_source
    }


def _downgrade_cluster_source(new: ObjectFragment) -> ObjectFragment:
    """Split a MultiKueueCluster's clusterSource.

    v1beta1 requires a kubeConfig: if clusterSource has none, kubeConfig gets an empty location.
    """
    if "clusterSource" not in new:
        return {}
    cluster_source = new["clusterSource"] or {}
    kube_config = cluster_source.get("kubeConfig") or {"location": "", "locationType": "Secret"}
    profile = cluster_source.get("clusterProfileRef")
    return {"kubeConfig": kube_config, **({} if profile is None else {"clusterProfileRef": profile})}


_FAIR_SHARING_STATUS_CONVERSION: Final = removed_field_conversion(
    ("status", "fairSharing"), "admissionFairSharingStatus"
)

CLUSTER_QUEUE_CONVERSIONS: Final[Sequence[FieldConversion]] = (
    renamed_field_conversion(_SPEC_PATH, "cohort", "cohortName"),
    FieldConversion(
        "spec.admissionChecksStrategy",
        MappingFields(_SPEC_PATH, ("admissionChecks", "admissionChecksStrategy")),
        MappingFields(_SPEC_PATH, ("admissionChecksStrategy",)),
        _upgrade_admission_checks,
        _downgrade_admission_checks,
    ),
    _fungibility_conversion("whenCanBorrow", "Borrow"),
    _fungibility_conversion("whenCanPreempt", "Preempt"),
    added_field_conversion(_SPEC_PATH, "concurrentAdmissionPolicy"),
    removed_field_conversion(_STATUS_PATH, "pendingWorkloadsStatus"),
    _FAIR_SHARING_STATUS_CONVERSION,
)

COHORT_CONVERSIONS: Final[Sequence[FieldConversion]] = (_FAIR_SHARING_STATUS_CONVERSION,)

LOCAL_QUEUE_CONVERSIONS: Final[Sequence[FieldConversion]] = (
    renamed_field_conversion(_STATUS_PATH, "flavorUsage", "flavorsUsage"),
    removed_field_conversion(_STATUS_PATH, "flavors"),
)

ADMISSION_CHECK_CONVERSIONS: Final[Sequence[FieldConversion]] = (
    removed_field_conversion(_SPEC_PATH, "retryDelayMinutes", retryDelayMinutes=15),
)

MULTI_KUEUE_CONFIG_CONVERSIONS: Final[Sequence[FieldConversion]] = (
    added_field_conversion(_SPEC_PATH, "quotaManagement"),
)

MULTI_KUEUE_CLUSTER_CONVERSIONS: Final[Sequence[FieldConversion]] = (
    FieldConversion(
        "spec.clusterSource",
        MappingFields(_SPEC_PATH, ("kubeConfig", "clusterProfileRef")),
        MappingFields(_SPEC_PATH, ("clusterSource",)),
        _upgrade_cluster_source,
        _downgrade_cluster_source,
    ),
)


_DOMAINS_PER_SLICE_MAX: Final = 100_000
_TOPOLOGY_SLICES_MAX: Final = 1_000


def compress_domains(levels: Sequence[str], domains: Sequence[Obj]) -> list[dict[str, Any]]:
    """Return TopologyAssignment slices for topology domains; a slice stores common prefixes and suffixes only once."""
    by_prefix = [_build_topology_slice(levels, group) for group in _group_by_prefix(levels, domains)]
    if len(by_prefix) <= 1 or len(domains) > _DOMAINS_PER_SLICE_MAX:
        return by_prefix
    single_slice = [_build_topology_slice(levels, domains)]
    return single_slice if len(msgspec.json.encode(single_slice)) < len(msgspec.json.encode(by_prefix)) else by_prefix


def expand_slices(slices: Sequence[Obj]) -> list[dict[str, Any]]:
    """Return the topology domains in the given TopologyAssignment slices, each with its level values and pod count."""
    return [
        {
            "values": [_level_value_at(values, i) for values in part["valuesPerLevel"]],
            "count": _pod_count_at(part["podCounts"], i),
        }
        for part in slices
        for i in range(part["domainCount"])
    ]


def _level_value_at(level_values: Obj, i: int) -> str:
    if (universal := level_values.get("universal")) is not None:
        return str(universal)
    individual = level_values["individual"]
    return f"{individual.get('prefix') or ''}{individual['roots'][i]}{individual.get('suffix') or ''}"


def _pod_count_at(pod_counts: Obj, i: int) -> int:
    universal_count = pod_counts.get("universal")
    return int(pod_counts["individual"][i] if universal_count is None else universal_count)


def _build_topology_slice(levels: Sequence[str], domains: Sequence[Obj]) -> dict[str, Any]:
    pod_counts = [domain["count"] for domain in domains]
    are_counts_equal = all(count == pod_counts[0] for count in pod_counts)
    return {
        "domainCount": len(domains),
        "podCounts": {"universal": pod_counts[0]} if are_counts_equal else {"individual": pod_counts},
        "valuesPerLevel": [_encode_levels([domain["values"][i] for domain in domains]) for i in range(len(levels))],
    }


def _encode_levels(level_values: Sequence[str]) -> dict[str, Any]:
    if all(value == level_values[0] for value in level_values):
        return {"universal": level_values[0]}
    common_suffix = _common_prefix([value[::-1] for value in level_values])[::-1]
    # The prefix and suffix must not overlap in a short value, as in `aba` beside `ababa`.
    common_prefix = _common_prefix(level_values)[: min(map(len, level_values)) - len(common_suffix)]
    middle_texts = [value[len(common_prefix) : len(value) - len(common_suffix)] for value in level_values]
    affix_by_field = {name: part for name, part in (("prefix", common_prefix), ("suffix", common_suffix)) if part}
    return {"individual": {**affix_by_field, "roots": middle_texts}}


def _common_prefix(values: Sequence[str]) -> str:
    smallest, largest = min(values), max(values)
    prefix_length = next((i for i, (a, b) in enumerate(zip(smallest, largest, strict=False)) if a != b), len(smallest))
    return smallest[:prefix_length]


def _group_by_prefix(levels: Sequence[str], domains: Sequence[Obj]) -> list[Sequence[Obj]]:
    keys = [""] * len(domains)
    if len(domains) > 1 and levels and levels[-1] == HOSTNAME:
        keys = _host_name_prefixes([domain["values"][-1] for domain in domains])
    slice_starts = _slice_start_indexes(keys)
    return [domains[start:end] for start, end in pairwise([*slice_starts, len(domains)])]


def _slice_start_indexes(keys: Sequence[str]) -> list[int]:
    start_indexes: list[int] = []
    for i, key in enumerate(keys):
        if not start_indexes or key != keys[i - 1] or i - start_indexes[-1] == _DOMAINS_PER_SLICE_MAX:
            start_indexes.append(i)
    return start_indexes


def _host_name_prefixes(host_names: Sequence[str]) -> list[str]:
    """Return for each host name its longest prefix ending in a hyphen that another host name shares, or ''.

    If this results in too many slices, shorter prefixes are used.
    """
    prefixes = [[host[: i + 1] for i in range(len(host) - 1) if host[i] == "-"] for host in host_names]
    uses: dict[str, int] = {}
    for prefix in (prefix for host_prefixes in prefixes for prefix in host_prefixes):
        uses[prefix] = uses.get(prefix, 0) + 1
    for depth in range(max(map(len, prefixes)), 0, -1):
        keys = [next((p for p in reversed(host_prefixes[:depth]) if uses[p] > 1), "") for host_prefixes in prefixes]
        if len(_slice_start_indexes(keys)) <= _TOPOLOGY_SLICES_MAX:
            return keys
    return [""] * len(host_names)


_CLASS_REFERENCE_BY_SOURCE: Final[Mapping[str, tuple[str, str]]] = {
    "kueue.x-k8s.io/workloadpriorityclass": ("kueue.x-k8s.io", "WorkloadPriorityClass"),
    "scheduling.k8s.io/priorityclass": ("scheduling.k8s.io", "PriorityClass"),
}
_SOURCE_BY_CLASS_REFERENCE: Final = {reference: source for source, reference in _CLASS_REFERENCE_BY_SOURCE.items()}
_SLICE_CONSTRAINTS_FIELD: Final = "podsetSliceRequiredTopologyConstraints"
_POD_SETS_PATH: Final = ("spec", "podSets")
_POD_SET_ASSIGNMENTS_PATH: Final = ("status", "admission", "podSetAssignments")


@dataclass(frozen=True, slots=True)
class ItemFields:
    """The location of one field in each item of the list at `path`; `item_path` leads to the field within an item."""

    path: tuple[str, ...]
    field: str
    item_path: tuple[str, ...] = ()

    def read(self, obj: Obj) -> ObjectFragment:
        """Return the field's values in the object's list items, by item name, for the items that have the field."""
        value_by_item_name = {}
        for item in self._find_list_items(obj) or ():
            mapping = _value_at(item, self.item_path)
            if isinstance(mapping, Mapping) and mapping.get(self.field) is not None:
                value_by_item_name[item.get("name", "main")] = mapping[self.field]
        return value_by_item_name

    def write(self, obj: Obj, fragment: ObjectFragment) -> Obj:
        """Return the object with the field set in each list item named in `fragment`, and removed from the others."""
        items = self._find_list_items(obj)
        if not items or fragment == self.read(obj):
            return obj
        return with_path(obj, self.path, [self._write_item(item, fragment) for item in items])

    def _write_item(self, item: Obj, fragment: ObjectFragment) -> Obj:
        if not isinstance(_value_at(item, self.item_path), Mapping):
            return item
        return with_path(item, (*self.item_path, self.field), fragment.get(item.get("name", "main")))

    def _find_list_items(self, obj: Obj) -> list[Obj] | None:
        items = _value_at(obj, self.path)
        return items if isinstance(items, list) else None


def _value_at(obj: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        obj = obj.get(name) if isinstance(obj, Mapping) else None
    return obj


def _upgrade_priority_class(old: ObjectFragment) -> ObjectFragment:
    class_reference = _CLASS_REFERENCE_BY_SOURCE.get(old.get("priorityClassSource") or "")
    name = old.get("priorityClassName")
    if class_reference is None or not name:
        return {}
    return {"priorityClassRef": {"group": class_reference[0], "kind": class_reference[1], "name": name}}


def _downgrade_priority_class(new: ObjectFragment) -> ObjectFragment:
    class_reference = new.get("priorityClassRef") or {}
    class_source = _SOURCE_BY_CLASS_REFERENCE.get((class_reference.get("group", ""), class_reference.get("kind", "")))
    return {"priorityClassName": class_reference["name"], "priorityClassSource": class_source} if class_source else {}


def _compress_topology_assignment(assignment: Obj) -> Obj:
    levels, domains = assignment.get("levels") or [], assignment.get("domains")
    if domains is None or any(len(domain["values"]) != len(levels) for domain in domains):
        return assignment
    other_fields = {name: value for name, value in assignment.items() if name != "domains"}
    return {**other_fields, "slices": compress_domains(levels, domains)}


def _expand_topology_assignment(assignment: Obj) -> Obj:
    if next(assignment_errors(assignment, ""), None) is not None:
        return assignment
    other_fields = {name: value for name, value in assignment.items() if name != "slices"}
    return {**other_fields, "domains": expand_slices(assignment["slices"])}


def _assignment_converter(change_assignment: Callable[[Obj], Obj]) -> Callable[[ObjectFragment], ObjectFragment]:
    return lambda fragment: {name: change_assignment(assignment) for name, assignment in fragment.items()}


WORKLOAD_CONVERSIONS: Final[Sequence[FieldConversion]] = (
    FieldConversion(
        "spec.priorityClassRef",
        MappingFields(("spec",), ("priorityClassName", "priorityClassSource"), {"priorityClassSource": ""}),
        MappingFields(("spec",), ("priorityClassRef",)),
        _upgrade_priority_class,
        _downgrade_priority_class,
    ),
    added_field_conversion(("spec",), "preemptionGates"),
    added_field_conversion(("status",), "preemptionGates"),
    renamed_field_conversion(
        ("status",), "accumulatedPastExexcutionTimeSeconds", "accumulatedPastExecutionTimeSeconds"
    ),
    FieldConversion(
        f"spec.podSets.topologyRequest.{_SLICE_CONSTRAINTS_FIELD}",
        MappingFields(_POD_SETS_PATH, ()),
        ItemFields(_POD_SETS_PATH, _SLICE_CONSTRAINTS_FIELD, ("topologyRequest",)),
        lambda _: {},
        lambda _: {},
    ),
    FieldConversion(
        "status.admission.podSetAssignments.topologyAssignment",
        ItemFields(_POD_SET_ASSIGNMENTS_PATH, "topologyAssignment"),
        ItemFields(_POD_SET_ASSIGNMENTS_PATH, "topologyAssignment"),
        _assignment_converter(_compress_topology_assignment),
        _assignment_converter(_expand_topology_assignment),
    ),
)
