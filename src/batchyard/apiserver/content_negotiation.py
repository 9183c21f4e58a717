"""Representations of objects: whole, metadata only, or as a Table.

Sources: k8s.io/apiserver, pkg/endpoints/handlers/{response,negotiation}.go; k8s.io/apimachinery, pkg/apis/meta/v1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.api.printing import Column
from batchyard.api.wire_times import metadata_in_whole_seconds
from batchyard.apiserver.request import JSON, ApiRequest, Response, StatusError, bad_request
from batchyard.apiserver.resources import ResourcePath
from batchyard.base.instant import Instant

_META: Final = "meta.k8s.io/v1"
_TYPE: Final = frozenset({"apiVersion", "kind"})
_INCLUDED: Final = ("Metadata", "Object", "None")


class ResponseForm(Enum):
    """The representation of objects in a response."""

    WHOLE = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


class ShownItems(Sequence[Any]):
    """The converted items of a list, as a lazy sequence: each access converts again."""

    def __init__(self, stored: Sequence[Any], show: Callable[[Any], Any]) -> None:
        self._stored = stored
        self._show = show

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[Any]:
        return map(self._show, self._stored)

    def __getitem__(self, index: Any) -> Any:
        found = self._stored[index]
        return ShownItems(found, self._show) if isinstance(index, slice) else self._show(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Representation:
    """Renders the objects of a resource as one request accepts them."""

    def __init__(self, request: ApiRequest, path: ResourcePath, now: Instant) -> None:
        self._form = form_of(request)
        self._path = path
        self._now = now
        self._included = request.query.get("includeObject") or _INCLUDED[0]
        if self._included not in _INCLUDED:
            raise bad_request(f'unrecognized includeObject value: "{self._included}"')

    def one(self, stored: Obj) -> Mapping[str, Any]:
        """Render one object."""
        match self._form:
            case ResponseForm.TABLE:
                revision = stored["metadata"].get("resourceVersion")  # absent on virtual objects
                return self._table([stored], {} if revision is None else {"resourceVersion": revision})
            case ResponseForm.WHOLE:
                return self._path.resource.strategy.show(stored, self._path.api_version)
        self.check_is_of_one()
        return _metadata_of(stored)

    def check_is_of_one(self) -> None:
        """Raise Refused if the form is only for lists."""
        if self._form is ResponseForm.METADATA_LIST:
            raise _not_acceptable(f"you requested {self._form.value}, but the requested object is not a list")

    def bookmark(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Render a bookmark: an object with metadata only, or a table without rows."""
        match self._form:
            case ResponseForm.TABLE:
                return self._table([], metadata)
            case ResponseForm.WHOLE:
                return {"kind": self._path.info.kind, "apiVersion": self._path.api_version, "metadata": metadata}
        return _metadata_of({"metadata": metadata})

    def many(self, stored: Sequence[Obj], metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Render a list of objects."""
        match self._form:
            case ResponseForm.TABLE:
                return self._table(stored, metadata)
            case ResponseForm.WHOLE:
                return whole_list(stored, self._path, metadata)
        if self._form is ResponseForm.METADATA:
            raise _not_acceptable(f"you requested {self._form.value}, but the requested object is a list")
        kind, items = ResponseForm.METADATA_LIST.value, ShownItems(stored, _metadata_of)
        return {"kind": kind, "apiVersion": _META, "metadata": metadata, "items": items}

    def _table(self, stored: Sequence[Obj], metadata: Mapping[str, Any]) -> dict[str, Any]:
        strategy, version = self._path.resource.strategy, self._path.api_version
        columns = strategy.columns(version)
        found = [_whole if column.counts else _READ.get(column.type) for column in columns]
        readers = [(i, read) for i, read in enumerate(found) if read is not None]

        def row(obj: Obj) -> dict[str, Any]:
            return {"cells": _typed(strategy.cells(obj, self._now, version), readers), **self._with(obj)}

        rows = [row(stored[0])] if len(stored) == 1 else ShownItems(stored, row)
        about = {"kind": "Table", "apiVersion": _META, "metadata": metadata}
        return {**about, "columnDefinitions": _definitions(columns), "rows": rows}

    def _with(self, obj: Obj) -> dict[str, Any]:
        match self._included:
            case "None":
                return {}
            case "Object":
                return {"object": self._path.resource.strategy.show(obj, self._path.api_version)}
        # managedFields are more than half of the metadata and unused in tables; kubectl is twice as fast without them.
        metadata = dict(obj["metadata"])
        metadata.pop("managedFields", None)
        return {"object": {**_PARTIAL, "metadata": metadata_in_whole_seconds(metadata)}}


def whole_list(stored: Sequence[Obj], path: ResourcePath, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a list of whole objects; items of built-in kinds lack `apiVersion` and `kind`, as Go's typed lists do."""
    version, show = path.api_version, path.resource.strategy.show
    has_type = path.resource.has_typed_items

    def item(obj: Obj) -> dict[str, Any]:
        shown = show(obj, version)
        return shown if has_type else {field: value for field, value in shown.items() if field not in _TYPE}

    items = ShownItems(stored, item)
    return {"kind": f"{path.info.kind}List", "apiVersion": version, "metadata": metadata, "items": items}


def in_form(answer: Response, form: ResponseForm) -> Response:
    """Convert the response of a write to the accepted metadata form, if any; a Status is unchanged."""
    kind = answer.body.get("kind")
    if form in {ResponseForm.WHOLE, ResponseForm.TABLE} or kind == "Status":
        return answer
    if "items" in answer.body:
        items = ShownItems(answer.body["items"], _metadata_of)
        body = {"kind": ResponseForm.METADATA_LIST.value, "apiVersion": _META, "metadata": {}, "items": items}
        return answer._replace(body=body)
    return answer._replace(body=_metadata_of(answer.body))


def form_of(request: ApiRequest) -> ResponseForm:
    """Return the first acceptable form of a request. Raises Refused if none is supported."""
    return _form_of(request.headers.get("accept", "*/*"))


@lru_cache(maxsize=256)
def _form_of(accept: str) -> ResponseForm:
    for accepted in accept.split(","):
        media_type, *parameters = (part.strip() for part in accepted.split(";"))
        if media_type not in {JSON, "application/*", "*/*", ""}:
            continue
        given = dict(_parameters(parameters))
        if "as" not in given:
            return ResponseForm.WHOLE
        if given.get("g") == "meta.k8s.io" and given.get("v") == "v1" and given["as"] in _FORMS:
            return ResponseForm(given["as"])
    raise _not_acceptable(f"only the following media types are accepted: {JSON}")


def _not_acceptable(reported: str) -> StatusError:
    return StatusError(406, "NotAcceptable", reported)


_PARTIAL: Final = {"kind": ResponseForm.METADATA.value, "apiVersion": _META}
_FORMS: Final = frozenset(form.value for form in ResponseForm)


def _parameters(parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for part in parts:
        name, _, value = part.partition("=")
        yield name, value


def _definitions(columns: Sequence[Column]) -> list[dict[str, Any]]:
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": "name" if column.name == "Name" else column.format,
            "description": column.description or column.name,
            "priority": column.priority,
        }
        for column in columns
    ]


def _typed(cells: list[Any], readers: Sequence[tuple[int, Callable[[str], Any]]]) -> list[Any]:
    """Convert cells of typed columns from text."""
    for i, read in readers:
        cells[i] = read(cells[i])
    return cells


def _whole(text: str) -> Any:
    return int(text) if text.removeprefix("-").isdecimal() else text


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _truth(text: str) -> Any:
    return {"true": True, "false": False}.get(text, text)


_READ: Final[Mapping[str, Callable[[str], Any]]] = {"integer": _whole, "number": _number, "boolean": _truth}


def _metadata_of(obj: Obj) -> dict[str, Any]:
    return {**_PARTIAL, "metadata": metadata_in_whole_seconds(obj["metadata"])}
