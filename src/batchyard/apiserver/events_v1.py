"""Events in `events.k8s.io`: the objects of the core group with some fields renamed.

controller-runtime writes its Events there. Source: Kubernetes's pkg/apis/events/v1/conversion.go.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.decode import DecodedObject
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.validation import core as event
from batchyard.api.wire_times import TimeLocations, as_stored, in_whole_seconds
from batchyard.apiserver.built_in import BuiltIn
from batchyard.apiserver.merge_schema import MergeSchema, MergeSchemaMembers, shape_of_kind
from batchyard.apiserver.openapi.schemas import schema_name
from batchyard.apiserver.resources import Resource

_CORE: Final = scheme.kind_info(scheme.EVENT)
_INFO: Final = replace(_CORE, group="events.k8s.io")
#: Field names of the core group to those of this group.
_RENAMED: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_AS_IN_CORE: Final = {new: old for old, new in _RENAMED.items()}


def events_resource() -> Resource:
    """Return the resource of this group."""
    return Resource(_INFO, _RenamedEvents(scheme.EVENT), shape=_shape, is_native=True, drops_unknown=True)


class _RenamedEvents(BuiltIn):
    """The strategy of Events in this group."""

    def decode(self, sent: Mapping[str, Any], namespace: str, sound: Obj | None = None) -> DecodedObject:
        """Decode an Event into the form of the core group."""
        return super().decode({**_with_names(sent, _AS_IN_CORE), "apiVersion": _CORE.api_version}, namespace)

    def prepared(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """Return an updated Event, where times unchanged in whole seconds keep their stored precision."""
        kept: dict[str, Any] = as_stored(new, in_whole_seconds(dict(old), super().times(_CORE.api_version)), old)
        return kept

    def check_create(self, new: Obj) -> list[FieldError]:
        """Return the validation errors of a new Event of this group."""
        return [*super().check_create(new), *event.strict_faults(new)]

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of an update in this group."""
        return [*super().check_update(new, old), *event.strict_update_faults(new, old)]

    def in_version(self, stored: Obj, api_version: str) -> dict[str, Any]:
        """Return a stored Event with the field names of this group."""
        return {**_with_names(stored, _RENAMED), "apiVersion": api_version}

    def times(self, api_version: str) -> TimeLocations:
        """Return the paths of time fields by the names of this group."""
        return _with_names(super().times(api_version), _RENAMED)

    def schemas(self, version: str) -> Mapping[str, Any]:
        """Return the schema of the kind and the referenced ones."""
        found = dict(super().schemas(version))
        core = found.pop(schema_name(_CORE, version))
        kind = {"group": _INFO.group, "version": version, "kind": _INFO.kind}
        properties = _with_names(core["properties"], _RENAMED)
        own = {"type": "object", "properties": properties, "x-kubernetes-group-version-kind": [kind]}
        return {schema_name(_INFO, version): own, **found}


def _shape(version: str) -> MergeSchema:
    return MergeSchema(
        {}, lambda: MergeSchemaMembers(_with_names(shape_of_kind(_CORE, version).inside.fields, _RENAMED))
    )


def _with_names(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in fields.items()}
