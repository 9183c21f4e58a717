"""Conversion of objects between API versions, and of their timestamps; sharing of equal parts of decoded objects.

Objects are stored in the storage version. Fields that a version cannot represent are kept in an annotation while the
object has that version. Objects must be structurally valid in their version. Kueue's kinds have the versions v1beta1
and v1beta2, and v1beta2 is stored. The versions of ProvisioningRequests differ only in their name. Kueue's
Configuration is a file: v1beta1 is converted to v1beta2 without the fields that v1beta2 lacks, and never back.
HorizontalPodAutoscalers have the versions v1 and v2 (`autoscaling_conversion.py`), and v2 is stored.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from operator import is_
from types import ModuleType
from typing import Any, Final, TypeAlias, cast

import msgspec

from batchyard.api import kueue_conversion, scheme
from batchyard.api.meta import Obj, group_kind
from batchyard.api.scheme import NATIVE, Field, ServedKind, TypeScope, is_built_in, load_scope, load_scope_for_kind
from batchyard.api.times import format_time, parse_time
from batchyard.api.well_known import DISABLE_WAIT_FOR_PODS_READY, FINAL_SHARE, INITIAL_SHARE
from batchyard.base.instant import SECOND

# Conversion of Kueue's Configuration from v1beta1 to v1beta2, which has no `enable` fields.
#
# A feature that is missing or disabled in v1beta1 is disabled in the result. waitForPodsReady is on by default in
# v1beta2, so its feature gate disables it.
# Source: apis/config/v1beta1/configuration_conversion.go and defaults.go of Kueue.


CONFIGURATION_OLD_API_VERSION: Final = "config.kueue.x-k8s.io/v1beta1"
CONFIGURATION_STORAGE_API_VERSION: Final = "config.kueue.x-k8s.io/v1beta2"
#: The default preemption strategies if v1beta1 enables fair sharing without naming any.
PREEMPTION_STRATEGIES: Final = (FINAL_SHARE, INITIAL_SHARE)


def convert_configuration_to_storage(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a Kueue Configuration from v1beta1, with defaults already filled in, to v1beta2.

    The fields queueVisibility, integrations.podOptions and `enable`, which v1beta2 lacks, are dropped.
    """
    configuration = {key: value for key, value in obj.items() if key not in {"queueVisibility", "fairSharing"}}
    wait_settings, fair_sharing = dict(configuration.pop("waitForPodsReady", {})), dict(obj.get("fairSharing") or {})
    if wait_settings.pop("enable", False):
        configuration["waitForPodsReady"] = wait_settings
    else:
        configuration["featureGates"] = {**(obj.get("featureGates") or {}), DISABLE_WAIT_FOR_PODS_READY: True}
    if fair_sharing.get("enable"):
        configuration["fairSharing"] = {
            "preemptionStrategies": fair_sharing.get("preemptionStrategies") or list(PREEMPTION_STRATEGIES)
        }
    if "integrations" in configuration:
        configuration["integrations"] = {k: v for k, v in configuration["integrations"].items() if k != "podOptions"}
    return {**configuration, "apiVersion": CONFIGURATION_STORAGE_API_VERSION}


_OLD_AUTOSCALING_API_VERSION: Final = "autoscaling/v1"
OLD_API_VERSION: Final = "kueue.x-k8s.io/v1beta1"
STORAGE_API_VERSION: Final = "kueue.x-k8s.io/v1beta2"
#: On objects of the storage version: fields that only v1beta1 has.
OLD_ONLY_ANNOTATION: Final = "batchyard.dev/v1beta1-only"
#: On objects of v1beta1: fields that only the storage version has.
NEW_ONLY_ANNOTATION: Final = "batchyard.dev/v1beta2-only"

#: API versions whose fields equal those of the storage version, each with that storage version.
_EQUIVALENT_API_VERSIONS: Final = {"autoscaling.x-k8s.io/v1beta1": "autoscaling.x-k8s.io/v1"}

_CONVERSIONS_BY_KIND: Final[Mapping[str, Sequence[kueue_conversion.FieldConversion]]] = {
    scheme.CLUSTER_QUEUE: kueue_conversion.CLUSTER_QUEUE_CONVERSIONS,
    scheme.COHORT: kueue_conversion.COHORT_CONVERSIONS,
    scheme.LOCAL_QUEUE: kueue_conversion.LOCAL_QUEUE_CONVERSIONS,
    scheme.WORKLOAD: kueue_conversion.WORKLOAD_CONVERSIONS,
    scheme.ADMISSION_CHECK: kueue_conversion.ADMISSION_CHECK_CONVERSIONS,
    scheme.MULTI_KUEUE_CONFIG: kueue_conversion.MULTI_KUEUE_CONFIG_CONVERSIONS,
    scheme.MULTI_KUEUE_CLUSTER: kueue_conversion.MULTI_KUEUE_CLUSTER_CONVERSIONS,
}
_REVERSED_CONVERSIONS_BY_KIND: Final = {
    kind: tuple(map(kueue_conversion.reverse_conversion, conversions))
    for kind, conversions in _CONVERSIONS_BY_KIND.items()
}


def to_storage(obj: Obj) -> dict[str, Any]:
    """Convert an object to its storage version; return the same object if it already has that version."""
    version = obj["apiVersion"]
    if version in _EQUIVALENT_API_VERSIONS:
        return {**obj, "apiVersion": _EQUIVALENT_API_VERSIONS[version]}
    if version == CONFIGURATION_OLD_API_VERSION:
        return convert_configuration_to_storage(obj)
    if version == _OLD_AUTOSCALING_API_VERSION and obj["kind"] == "HorizontalPodAutoscaler":
        return cast("dict[str, Any]", _autoscaling_conversion().to_v2(obj))
    if version != OLD_API_VERSION:
        return obj if isinstance(obj, dict) else dict(obj)
    converted_obj = kueue_conversion.convert_fields(
        obj,
        _CONVERSIONS_BY_KIND.get(group_kind(obj), ()),
        restored_from=NEW_ONLY_ANNOTATION,
        saved_to=OLD_ONLY_ANNOTATION,
    )
    return {**converted_obj, "apiVersion": STORAGE_API_VERSION}


def lost_fields(obj: Obj) -> list[str]:
    """Return the paths of the fields of a v1beta1 object to which no field of the storage version corresponds."""
    old_fields = [(each, each.old.read(obj)) for each in _CONVERSIONS_BY_KIND.get(group_kind(obj), ())]
    return [each.name for each, fields in old_fields if fields and not each.upgrade(fields)]


def from_storage(obj: Obj, api_version: str) -> dict[str, Any]:
    """Convert an object from its storage version to `api_version` (`group/version`).

    Returns the same object if it already has that version. Raises ValueError if it cannot be converted.
    """
    if obj["apiVersion"] == api_version:
        return obj if isinstance(obj, dict) else dict(obj)
    if _EQUIVALENT_API_VERSIONS.get(api_version) == obj["apiVersion"]:
        return {**obj, "apiVersion": api_version}
    if api_version == _OLD_AUTOSCALING_API_VERSION and group_kind(obj) == scheme.HORIZONTAL_POD_AUTOSCALER:
        return cast("dict[str, Any]", _autoscaling_conversion().to_v1(obj))
    if (obj["apiVersion"], api_version) != (STORAGE_API_VERSION, OLD_API_VERSION):
        raise ValueError(f"{obj['apiVersion']} {obj['kind']} has no version {api_version}")
    converted_obj = kueue_conversion.convert_fields(
        obj,
        _REVERSED_CONVERSIONS_BY_KIND.get(group_kind(obj), ()),
        restored_from=OLD_ONLY_ANNOTATION,
        saved_to=NEW_ONLY_ANNOTATION,
    )
    return {**converted_obj, "apiVersion": OLD_API_VERSION}


def _autoscaling_conversion() -> ModuleType:
    from batchyard.api import autoscaling_conversion  # noqa: PLC0415 - few clients use the old version

    return autoscaling_conversion


# Wire format of times: whole seconds, as Kubernetes writes them, although the platform stores microseconds.
#
# An API server shows times in this form, and a client sends them in this form, because servers store custom resources
# as sent. Only the MicroTime fields of Kubernetes keep their fraction. A time that a client sends back as shown is
# replaced by the stored one, so that reading and writing an object does not lose precision. Source: apimachinery's
# metav1.Time.


TimeLocations: TypeAlias = "Mapping[str, TimeLocations]"
"""The metav1.Time fields of an object type: nested mappings by field name, with an empty mapping for each time."""

#: The time field of managedFields entries: the server already writes it in whole seconds.
_MANAGED_FIELDS_TIME: Final = "ManagedFieldsEntry.time"
#: The maximum size of the cache: each entry keeps an object and its wire form in memory, even after its deletion.
_WIRE_TIMES_CACHE_SIZE_MAX: Final = 1024
_TIME_LEAF: Final[TimeLocations] = {}
_SECONDS_LENGTH: Final = len("2026-01-01T00:00:00")
_MICRO_TIME_LENGTH: Final = len("2026-01-01T00:00:00.250000Z")
#: The locations of a type without times: no object has a field with an empty name.
_NO_TIME_LOCATIONS: Final[TimeLocations] = {"": {}}


def cut_times_to_seconds(obj: dict[str, Any], locations: TimeLocations) -> dict[str, Any]:
    """Return the object with the timestamps at `locations` cut to whole seconds; the same object if unchanged."""
    cut_object: dict[str, Any] = _cut_times(obj, locations)
    return cut_object


def cut_metadata_times_to_seconds(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object's metadata with its timestamps cut to whole seconds; the same mapping if unchanged."""
    cut_metadata: dict[str, Any] = _cut_times(metadata, metadata_time_locations()["metadata"])
    return cut_metadata


class WireTimesCache:
    """A bounded cache of objects whose timestamps are cut to whole seconds, for objects sent to clients repeatedly."""

    def __init__(self) -> None:
        #: By `id(obj)`: the object, the locations of its times, and the object with times in whole seconds.
        self._entries: dict[int, tuple[Any, TimeLocations, dict[str, Any]]] = {}

    def cut_times_to_seconds(self, obj: dict[str, Any], locations: TimeLocations) -> dict[str, Any]:
        """Return the object with the timestamps at `locations` cut to whole seconds, from the cache if possible."""
        cache_entry = self._entries.get(id(obj))
        if cache_entry is not None and cache_entry[0] is obj and cache_entry[1] is locations:
            return cache_entry[2]
        if len(self._entries) >= _WIRE_TIMES_CACHE_SIZE_MAX:
            self._entries.clear()
        cut_object = cut_times_to_seconds(obj, locations)
        self._entries[id(obj)] = obj, locations, cut_object  # a reference to the object keeps its id unique
        return cut_object


@cache
def time_locations(served_kind: ServedKind, version: str) -> TimeLocations:
    """Return the locations of the metav1.Time fields of a kind in an API version, from the schema of the kind.

    Of a custom kind, only the fields of its metadata are known.
    """
    if not is_built_in(served_kind.constant):
        return metadata_time_locations()
    return _locations_in_type(load_scope_for_kind(served_kind, version), served_kind.kind, ())


@cache
def metadata_time_locations() -> TimeLocations:
    """Return the locations of the metav1.Time fields of ObjectMeta, for custom kinds, whose schema is unknown here."""
    return {"metadata": _locations_in_type(load_scope(NATIVE), "ObjectMeta", ())}


def restore_stored_times(sent_part: Any, shown_part: Any, stored_part: Any) -> Any:
    """Return `sent_part` with the stored microseconds restored in each timestamp that the client did not change.

    `sent_part`, `shown_part` and `stored_part` are the same part of an object as sent by a client, as returned to that
    client before, and as stored. A string that is equal in the first two is replaced by the stored string.
    """
    if shown_part is stored_part:
        return sent_part
    if sent_part is shown_part:
        return stored_part
    if isinstance(stored_part, str):
        return stored_part if sent_part == shown_part else sent_part
    if isinstance(sent_part, Mapping) and isinstance(shown_part, Mapping) and isinstance(stored_part, Mapping):
        fields = shown_part.keys() & stored_part.keys()
        return {
            k: restore_stored_times(v, shown_part[k], stored_part[k]) if k in fields else v
            for k, v in sent_part.items()
        }
    if (
        isinstance(sent_part, list)
        and isinstance(stored_part, list)
        and len(sent_part) == len(shown_part) == len(stored_part)
    ):
        return [restore_stored_times(*values) for values in zip(sent_part, shown_part, stored_part, strict=True)]
    return sent_part


def _cut_times(value: Any, locations: TimeLocations) -> Any:
    if not locations:
        return _cut_time_to_seconds(value) if isinstance(value, str) else value
    if isinstance(value, dict):
        changed_fields: dict[str, Any] | None = None
        for field, inner_locations in locations.items():
            old = value.get(field)
            if not old:
                continue
            new = _cut_times(old, inner_locations)
            if new is not old:
                changed_fields = value.copy() if changed_fields is None else changed_fields
                changed_fields[field] = new
        return value if changed_fields is None else changed_fields
    if not isinstance(value, list):
        return value
    cut_items = [_cut_times(item, locations) for item in value]
    return value if all(map(is_, cut_items, value)) else cut_items


def _cut_time_to_seconds(time_text: str) -> str:
    if "." not in time_text:
        return time_text
    if len(time_text) == _MICRO_TIME_LENGTH and time_text[_SECONDS_LENGTH] == "." and time_text[-1] == "Z":
        return f"{time_text[:_SECONDS_LENGTH]}Z"  # the format of format_time
    try:
        return format_time(parse_time(time_text) // SECOND * SECOND)
    except ValueError:
        return time_text


def _locations_in_type(type_scope: TypeScope, type_name: str, outer_types: tuple[str, ...]) -> TimeLocations:
    """Return where a schema type has metav1.Time fields; the search stops at `outer_types`, which contain the type."""
    if type_name in outer_types:
        return _NO_TIME_LOCATIONS
    field_locations = {}
    for name, field in type_scope.fields(type_name).items():
        locations = _locations_in_field(type_scope, field, (*outer_types, type_name))
        if locations is not _NO_TIME_LOCATIONS and f"{type_name}.{name}" != _MANAGED_FIELDS_TIME:
            field_locations[name] = locations
    return field_locations or _NO_TIME_LOCATIONS


def _locations_in_field(type_scope: TypeScope, field: Field, outer_types: tuple[str, ...]) -> TimeLocations:
    value_type = field.element if field.is_list else field
    if value_type.expression == "time":
        return _TIME_LEAF
    if not value_type.is_object:
        return _NO_TIME_LOCATIONS
    inner_scope, type_name = type_scope.scope_of(value_type.expression)
    return _locations_in_type(inner_scope, type_name, outer_types)


# Equal parts of decoded objects, which these objects then share.
#
# Tens of thousands of Workloads have a few different specs, and the same managers and conditions. As separate objects,
# these parts take several times the memory of their text.


#: The maximum number of parts that are kept for later objects.
_SHARED_PARTS_MAX: Final = 8192
_encode_json = msgspec.json.Encoder().encode


class SharedParts:
    """The parts of earlier decoded objects by content: specs of Workloads, managedFields, finalizers and conditions."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[bytes, Any] = {}

    def share(self, obj: dict[str, Any]) -> None:
        """Replace parts of an object in place by equal parts of earlier objects.

        The object was just decoded from JSON, so no other component has it yet. A malformed object may stay unchanged.
        """
        metadata, status = obj.get("metadata"), obj.get("status")
        if isinstance(metadata, dict):
            _intern_texts(obj, ("apiVersion", "kind"))
            _intern_texts(metadata, ("namespace", "creationTimestamp"))
            if finalizers := metadata.get("finalizers"):
                metadata["finalizers"] = self._share_part(finalizers)
            managed_fields = metadata.get("managedFields")
            if isinstance(managed_fields, list):
                managed_fields[:] = [self._share_manager(entry) for entry in managed_fields]
        if isinstance(status, dict):
            conditions = status.get("conditions")
            if isinstance(conditions, list):
                conditions[:] = [self._share_part(condition) for condition in conditions]
            for name in ("admission", "resourceRequests"):
                if part := status.get(name):
                    status[name] = self._share_part(part)
        if obj.get("kind") == "Workload" and (spec := obj.get("spec")):
            obj["spec"] = self._share_part(spec)

    def _share_part(self, part: Any) -> Any:
        if len(self._parts) >= _SHARED_PARTS_MAX:
            self._parts.clear()
        return self._parts.setdefault(_encode_json(part), part)

    def _share_manager(self, entry: Any) -> Any:
        """Return an equal entry of managedFields; the fields of an entry with another time are shared too."""
        shared_entry = self._share_part(entry)
        if shared_entry is entry and isinstance(entry, dict):
            _intern_texts(entry, ("manager", "operation", "apiVersion", "time", "fieldsType", "subresource"))
            if fields := entry.get("fieldsV1"):
                entry["fieldsV1"] = self._share_part(fields)
        return shared_entry


def _intern_texts(mapping: dict[str, Any], names: Sequence[str]) -> None:
    for name in names:
        text = mapping.get(name)
        if type(text) is str:
            mapping[name] = sys.intern(text)
