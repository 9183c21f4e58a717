"""Virtual resources, whose objects are computed for each request; ComponentStatuses; Events in `events.k8s.io`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from batchyard.api import scheme
from batchyard.api.conversion import TimeLocations, cut_times_to_seconds, restore_stored_times
from batchyard.api.errors import FieldError
from batchyard.api.manifests import DecodedObject
from batchyard.api.meta import Obj
from batchyard.api.printing import cells
from batchyard.api.printing.cells import Cell, Column
from batchyard.api.scheme import ServedKind, description
from batchyard.api.validation import core as core_validation
from batchyard.apiserver.built_in import BuiltInStrategy
from batchyard.apiserver.openapi_definitions import schema_name
from batchyard.apiserver.patch import MergeSchema, MergeSchemaMembers, merge_schema_of_kind
from batchyard.apiserver.request import ApiRequest, Response, method_not_allowed_error
from batchyard.apiserver.resources import EndpointHandlers, Resource, ResourcePath, not_found_error
from batchyard.apiserver.selection import parse_selection
from batchyard.apiserver.serialization import Representation
from batchyard.base.instant import Instant

# Resources without stored objects, whose requests are answered by functions.


class VirtualStrategy(BuiltInStrategy):
    """The kind-specific API logic of a kind without stored objects: only an OpenAPI schema."""

    def __init__(self, served_kind: ServedKind) -> None:
        super().__init__(served_kind.constant)
        self._served_kind = served_kind

    def schemas(self, version: str) -> Mapping[str, Any]:
        """Return an OpenAPI schema without fields: the kind's request handlers validate the fields."""
        served_kind = self._served_kind
        kind = {"group": served_kind.group, "version": version, "kind": served_kind.kind}
        schema = {
            "type": "object",
            "description": description(served_kind.kind),
            "x-kubernetes-group-version-kind": [kind],
        }
        return {schema_name(served_kind, version): schema}


def virtual_resource(kind: ServedKind, handlers: Mapping[str, EndpointHandlers]) -> Resource:
    """Return a resource without stored objects, with its handlers by subresource; '' is the resource itself."""
    return Resource(kind, VirtualStrategy(kind), handlers=handlers)


def virtual_kind(group: str, version: str, kind: str, plural: str, singular: str, *, namespaced: bool) -> ServedKind:
    """Return the kind of a virtual resource."""
    constant = f"{kind}.{group}" if group else kind
    return ServedKind(constant, kind, group, (version,), version, plural, singular, namespaced=namespaced)


class VirtualObjectSource(Protocol):
    """Computes the objects of a virtual resource."""

    def list_objects(self, namespace: str) -> Sequence[Obj]:
        """Return all objects of a namespace, or of all namespaces for '', sorted by namespace and name."""

    def get_object(self, namespace: str, name: str) -> Obj | None:
        """Return one object.

        If it does not exist, return None, or raise StatusError with a more specific message than `not found`.
        """


class ComputedStrategy(VirtualStrategy):
    """The kind-specific API logic of a kind whose objects are computed: an OpenAPI schema and a table."""

    def __init__(self, served_kind: ServedKind, table: Sequence[tuple[Column, Cell]]) -> None:
        super().__init__(served_kind)
        self._table = table

    def render(self, stored_object: Obj, api_version: str) -> dict[str, Any]:
        """Return a copy of a computed object, which is already in the served version."""
        return dict(stored_object)

    def columns(self, api_version: str) -> Sequence[Column]:
        """Return the table columns of the kind."""
        return [column for column, _ in self._table]

    def cells(self, stored_object: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of a computed object."""
        return [cell(stored_object, now) for _, cell in self._table]


def computed_resource(
    strategy: ComputedStrategy, served_kind: ServedKind, source: VirtualObjectSource, now: Callable[[], Instant]
) -> Resource:
    """Return a virtual resource that supports get and list of computed objects."""

    def get(request: ApiRequest, namespace: str, name: str) -> Response:
        if request.has_flag("watch") and not name:
            raise method_not_allowed_error()
        path = ResourcePath(resource, served_kind.storage_version, namespace, name, "", served_kind.api_version)
        representation = Representation(request, path, now())
        if name:
            obj = source.get_object(namespace, name)
            if obj is None:
                raise not_found_error(served_kind, name)
            return Response(200, representation.render_object(obj))
        selection = parse_selection(request, served_kind)
        objs = [obj for obj in source.list_objects(namespace) if selection.accepts(obj)]
        return Response(200, representation.render_list(objs, {}))

    handlers = EndpointHandlers(served_kind.group, served_kind.storage_version, served_kind.kind, {"GET": get})
    resource = virtual_resource(served_kind, {"": handlers})._replace(strategy=strategy)
    return resource


# Events in `events.k8s.io`: the objects of the core group with some fields renamed.
#
# controller-runtime writes its Events there. Source: Kubernetes's pkg/apis/events/v1/conversion.go.


_CORE_EVENT_INFO: Final = scheme.kind_info(scheme.EVENT)
_EVENTS_V1_INFO: Final = replace(_CORE_EVENT_INFO, group="events.k8s.io")
#: Field names of the core group to those of this group.
_EVENTS_V1_FIELD_NAMES: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_CORE_FIELD_NAMES: Final = {new: old for old, new in _EVENTS_V1_FIELD_NAMES.items()}


def events_resource() -> Resource:
    """Return the resource of Events in the group `events.k8s.io`."""
    events = _EventsV1Strategy(scheme.EVENT)
    return Resource(_EVENTS_V1_INFO, events, merge_schema=_events_v1_merge_schema, is_native=True, prunes_unknown=True)


class _EventsV1Strategy(BuiltInStrategy):
    """The API logic of Events in `events.k8s.io`, which are stored in the form of the core group."""

    def decode(self, sent_object: Mapping[str, Any], namespace: str, valid_obj: Obj | None = None) -> DecodedObject:
        return super().decode(
            {**_rename_fields(sent_object, _CORE_FIELD_NAMES), "apiVersion": _CORE_EVENT_INFO.api_version}, namespace
        )

    def prepare_update(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        prepared_event: dict[str, Any] = restore_stored_times(
            new, cut_times_to_seconds(dict(old), super().time_paths(_CORE_EVENT_INFO.api_version)), old
        )
        return prepared_event

    def check_create(self, new: Obj) -> list[FieldError]:
        return [*super().check_create(new), *core_validation.events_v1_errors(new)]

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        return [*super().check_update(new, old), *core_validation.events_v1_update_errors(new, old)]

    def in_version(self, stored_object: Obj, api_version: str) -> dict[str, Any]:
        return {**_rename_fields(stored_object, _EVENTS_V1_FIELD_NAMES), "apiVersion": api_version}

    def time_paths(self, api_version: str) -> TimeLocations:
        return _rename_fields(super().time_paths(api_version), _EVENTS_V1_FIELD_NAMES)

    def schemas(self, version: str) -> Mapping[str, Any]:
        schemas_by_name = dict(super().schemas(version))
        core_schema = schemas_by_name.pop(schema_name(_CORE_EVENT_INFO, version))
        kind = {"group": _EVENTS_V1_INFO.group, "version": version, "kind": _EVENTS_V1_INFO.kind}
        renamed_properties = _rename_fields(core_schema["properties"], _EVENTS_V1_FIELD_NAMES)
        event_schema = {"type": "object", "properties": renamed_properties, "x-kubernetes-group-version-kind": [kind]}
        return {schema_name(_EVENTS_V1_INFO, version): event_schema, **schemas_by_name}


def _events_v1_merge_schema(version: str) -> MergeSchema:
    return MergeSchema(
        {},
        lambda: MergeSchemaMembers(
            _rename_fields(merge_schema_of_kind(_CORE_EVENT_INFO, version).members.fields, _EVENTS_V1_FIELD_NAMES)
        ),
    )


def _rename_fields(fields: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    return {new_names.get(name, name): value for name, value in fields.items()}


# ComponentStatuses: the health of the control plane. All components share one process, so all report healthy.
#
# Source: Kubernetes's pkg/registry/core/componentstatus.


_COMPONENT_STATUS: Final = "ComponentStatus"
_COMPONENT_NAMES: Final = ("controller-manager", "journal", "scheduler")
_COMPONENT_STATUS_WARNING: Final = "v1 ComponentStatus is deprecated in v1.19+"


def component_status_resource(now: Callable[[], Instant]) -> Resource:
    """Return the virtual resource of ComponentStatuses."""
    served_kind = virtual_kind("", "v1", _COMPONENT_STATUS, "componentstatuses", "componentstatus", namespaced=False)
    served_kind = replace(
        served_kind, short_names=("cs",), deprecated_versions=("v1",), deprecation=_COMPONENT_STATUS_WARNING
    )
    table = (
        (Column("Name"), cells.name),
        (Column("Status"), lambda _obj, _now: "Healthy"),
        (Column("Message"), lambda obj, _now: str(obj["conditions"][0]["message"])),
        (Column("Error"), lambda _obj, _now: ""),
    )
    return computed_resource(ComputedStrategy(served_kind, table), served_kind, _ComponentStatusSource(), now)


class _ComponentStatusSource:
    def list_objects(self, _namespace: str) -> Sequence[Obj]:
        return [_component_status(name) for name in _COMPONENT_NAMES]

    def get_object(self, _namespace: str, name: str) -> Obj | None:
        return _component_status(name) if name in _COMPONENT_NAMES else None


def _component_status(name: str) -> Obj:
    condition = {"type": "Healthy", "status": "True", "message": "ok"}
    return {"kind": _COMPONENT_STATUS, "apiVersion": "v1", "metadata": {"name": name}, "conditions": [condition]}
