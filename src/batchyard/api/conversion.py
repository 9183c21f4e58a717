"""Lossless conversion of objects between API versions.

Objects are stored in the storage version. Fields that one version cannot represent are kept in an annotation
while the object has that version. Objects must be structurally valid in their version. Kueue's kinds have v1beta1 and
v1beta2, and v1beta2 is stored. The versions of ProvisioningRequests differ only in their name. Kueue's Configuration is
a file; both versions are read and converted to the newer one.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from operator import is_
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.kueue_conversion import (
    ADMISSION_CHECK_PARTS,
    CLUSTER_QUEUE_PARTS,
    COHORT_PARTS,
    LOCAL_QUEUE_PARTS,
    MULTI_KUEUE_CLUSTER_PARTS,
    MULTI_KUEUE_CONFIG_PARTS,
    PARTS,
    ConversionPart,
    converted,
    flipped,
)
from batchyard.api.meta import Obj, group_kind
from batchyard.api.scheme import NATIVE, Field, ServedKind, TypeScope, scope, scope_for
from batchyard.api.times import format_time, parse_time
from batchyard.api.well_known import DISABLE_WAIT_FOR_PODS_READY, FINAL_SHARE, INITIAL_SHARE
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
