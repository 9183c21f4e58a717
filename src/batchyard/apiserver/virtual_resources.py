"""Virtual resources: objects computed on request, which support get and list only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from batchyard.api import scheme
from batchyard.api.conversion import TimeLocations, as_stored, in_whole_seconds
from batchyard.api.errors import FieldError
from batchyard.api.manifests import DecodedObject
from batchyard.api.meta import Obj
from batchyard.api.printing import cells
from batchyard.api.printing.cells import Cell, Column
from batchyard.api.scheme import ServedKind, description
from batchyard.api.validation import core as event
from batchyard.apiserver.built_in import BuiltIn
from batchyard.apiserver.openapi_definitions import schema_name
from batchyard.apiserver.patch import MergeSchema, MergeSchemaMembers, shape_of_kind
from batchyard.apiserver.request import ApiRequest, Response, method_not_allowed
from batchyard.apiserver.resources import EndpointHandlers, Resource, ResourcePath, not_found
from batchyard.apiserver.selection import selection_of
from batchyard.apiserver.serialization import Representation
from batchyard.base.instant import Instant

# --- unstored ---
#
# Resources without stored objects, whose requests are answered by functions.


class VirtualStrategy(BuiltIn):
    """The strategy of a kind without stored objects: only its schema."""

    def __init__(self, info: ServedKind) -> None:
        super().__init__(info.constant)
        self._info = info

    def schemas(self, version: str) -> Mapping[str, Any]:
        """Return an OpenAPI schema without fields, because the handlers validate them."""
        kind = {"group": self._info.group, "version": version, "kind": self._info.kind}
        schema = {
            "type": "object",
            "description": description(self._info.kind),
            "x-kubernetes-group-version-kind": [kind],
        }
        return {schema_name(self._info, version): schema}


def unstored(kind: ServedKind, answers: Mapping[str, EndpointHandlers]) -> Resource:
    """Return a resource of one version answered by functions; '' for the resource itself."""
    return Resource(kind, VirtualStrategy(kind), answers=answers)


def unstored_kind(group: str, version: str, kind: str, plural: str, singular: str, *, namespaced: bool) -> ServedKind:
    """Return the kind of a virtual resource."""
    constant = f"{kind}.{group}" if group else kind
    return ServedKind(constant, kind, group, (version,), version, plural, singular, namespaced=namespaced)


class VirtualObjectSource(Protocol):
    """Computes the objects of a virtual resource."""

    def found(self, namespace: str) -> Sequence[Obj]:
        """Return all objects of a namespace, or of all namespaces for '', sorted by namespace and name."""

    def one(self, namespace: str, name: str) -> Obj | None:
        """Return one object, or None. Raises Refused for a more specific error."""


class ComputedStrategy(VirtualStrategy):
    """The strategy of a computed kind, with its table."""

    def __init__(self, info: ServedKind, table: Sequence[tuple[Column, Cell]]) -> None:
        super().__init__(info)
        self._table = table

    def show(self, stored: Obj, api_version: str) -> dict[str, Any]:
        """Return a computed object."""
        return dict(stored)

    def columns(self, api_version: str) -> Sequence[Column]:
        """Return the table columns."""
        return [column for column, _ in self._table]

    def cells(self, stored: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of an object."""
        return [cell(stored, now) for _, cell in self._table]


def derived(
    strategy: ComputedStrategy, info: ServedKind, source: VirtualObjectSource, now: Callable[[], Instant]
) -> Resource:
    """Return the resource of a computed kind."""

    def get(request: ApiRequest, namespace: str, name: str) -> Response:
        if request.flag("watch") and not name:
            raise method_not_allowed()
        path = ResourcePath(resource, info.storage_version, namespace, name, "", info.api_version)
        shown = Representation(request, path, now())
        if name:
            found = source.one(namespace, name)
            if found is None:
                raise not_found(path)
            return Response(200, shown.one(found))
        selection = selection_of(request, info)
        return Response(200, shown.many([o for o in source.found(namespace) if selection.accepts(o)], {}))

    answer = EndpointHandlers(info.group, info.storage_version, info.kind, {"GET": get})
    resource = unstored(info, {"": answer})._replace(strategy=strategy)
    return resource


# --- events v1 ---
#
# Events in `events.k8s.io`: the objects of the core group with some fields renamed.
#
# controller-runtime writes its Events there. Source: Kubernetes's pkg/apis/events/v1/conversion.go.


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


# --- component statuses ---
#
# ComponentStatuses: the health of the control plane. All components share one process, so all report healthy.
#
# Source: Kubernetes's pkg/registry/core/componentstatus.


_KIND: Final = "ComponentStatus"
_NAMES: Final = ("controller-manager", "journal", "scheduler")
_DEPRECATION: Final = "v1 ComponentStatus is deprecated in v1.19+"


def component_statuses(now: Callable[[], Instant]) -> Resource:
    """Return the ComponentStatuses as a resource."""
    info = unstored_kind("", "v1", _KIND, "componentstatuses", "componentstatus", namespaced=False)
    info = replace(info, short_names=("cs",), deprecated_versions=("v1",), deprecation=_DEPRECATION)
    table = (
        (Column("Name"), cells.name),
        (Column("Status"), lambda _obj, _now: "Healthy"),
        (Column("Message"), lambda obj, _now: str(obj["conditions"][0]["message"])),
        (Column("Error"), lambda _obj, _now: ""),
    )
    return derived(ComputedStrategy(info, table), info, _Components(), now)


class _Components:
    """The components of the control plane."""

    def found(self, _namespace: str) -> Sequence[Obj]:
        """Return all component statuses."""
        return [_component_status(name) for name in _NAMES]

    def one(self, _namespace: str, name: str) -> Obj | None:
        """Return the status of one component."""
        return _component_status(name) if name in _NAMES else None


def _component_status(name: str) -> Obj:
    condition = {"type": "Healthy", "status": "True", "message": "ok"}
    return {"kind": _KIND, "apiVersion": "v1", "metadata": {"name": name}, "conditions": [condition]}
