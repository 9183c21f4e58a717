"""Resources whose objects are worked out of others when somebody asks: read, listed, never written or watched."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from batchyard.api.meta import Obj
from batchyard.api.printing.cells import Cell, Column
from batchyard.api.schema.tables import description
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.built_in import BuiltIn
from batchyard.apiserver.content_negotiation import Representation
from batchyard.apiserver.openapi.schemas import schema_name
from batchyard.apiserver.request import Request, Response, method_not_allowed
from batchyard.apiserver.resources import Answer, Resource, ResourcePath
from batchyard.apiserver.selection import selection_of
from batchyard.apiserver.status_errors import not_found
from batchyard.base.instant import Instant

# --- unstored ---
#
# Resources of which nothing is stored: what is asked of them is answered by functions.


class Unstored(BuiltIn):
    """The strategy of a kind that has no objects: all there is to it is its schema."""

    def __init__(self, info: ServedKind) -> None:
        super().__init__(info.constant)
        self._info = info

    def schemas(self, version: str) -> Mapping[str, Any]:
        """Its schema in a version, as OpenAPI has it: fields are looked at when it is answered."""
        kind = {"group": self._info.group, "version": version, "kind": self._info.kind}
        schema = {
            "type": "object",
            "description": description(self._info.kind),
            "x-kubernetes-group-version-kind": [kind],
        }
        return {schema_name(self._info, version): schema}


def unstored(kind: ServedKind, answers: Mapping[str, Answer]) -> Resource:
    """A resource of one version that answers by functions; at '' for itself."""
    return Resource(kind, Unstored(kind), answers=answers)


def unstored_kind(group: str, version: str, kind: str, plural: str, singular: str, *, namespaced: bool) -> ServedKind:
    """The kind of such a resource."""
    constant = f"{kind}.{group}" if group else kind
    return ServedKind(constant, kind, group, (version,), version, plural, singular, namespaced=namespaced)


class Source(Protocol):
    """Where such objects come from."""

    def found(self, namespace: str) -> Sequence[Obj]:
        """All of them, in a namespace or, for '', in all; sorted by namespace and name."""

    def one(self, namespace: str, name: str) -> Obj | None:
        """The one of that name, or None; Refused where more is to say than that it is not there."""


class Derived(Unstored):
    """The strategy of such a kind, with the columns of its table."""

    def __init__(self, info: ServedKind, table: Sequence[tuple[Column, Cell]]) -> None:
        super().__init__(info)
        self._table = table

    def show(self, stored: Obj, api_version: str) -> dict[str, Any]:
        """An object as it was worked out."""
        return dict(stored)

    def columns(self, api_version: str) -> Sequence[Column]:
        """The columns of its table."""
        return [column for column, _ in self._table]

    def cells(self, stored: Obj, now: Instant, api_version: str) -> list[str]:
        """The cells of an object, one for each column."""
        return [cell(stored, now) for _, cell in self._table]


def derived(strategy: Derived, info: ServedKind, source: Source, now: Callable[[], Instant]) -> Resource:
    """A resource of such objects."""

    def get(request: Request, namespace: str, name: str) -> Response:
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

    answer = Answer(info.group, info.storage_version, info.kind, {"GET": get})
    resource = unstored(info, {"": answer})._replace(strategy=strategy)
    return resource
