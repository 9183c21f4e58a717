"""Virtual resources: objects computed on request, which support get and list only."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from batchyard.api.meta import Obj
from batchyard.api.printing.cells import Cell, Column
from batchyard.api.schema.tables import description
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.built_in import BuiltIn
from batchyard.apiserver.content_negotiation import Representation
from batchyard.apiserver.openapi.schemas import schema_name
from batchyard.apiserver.request import ApiRequest, Response, method_not_allowed
from batchyard.apiserver.resources import EndpointHandlers, Resource, ResourcePath
from batchyard.apiserver.selection import selection_of
from batchyard.apiserver.status_errors import not_found
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
