"""JSON patches with the semantics and messages of the API server's library.

Only the values on the path of an operation are copied, once per patch. The rest keeps its identity, so later steps
detect unchanged parts cheaply. The copied bytes and the shifted list items are limited. Sources: RFC 6902;
github.com/evanphx/json-patch v4, patch.go; k8s.io/apiserver's pkg/endpoints/handlers/patch.go.
"""

import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

import msgspec

from batchyard.api.meta import Obj
from batchyard.api.yaml_documents import is_too_deep
from batchyard.apiserver.request import StatusError, bad_request

_OPERATIONS_MAX: Final = 10_000
#: Maximum total bytes of copy operations.
_COPIED_MAX: Final = 3 * 1024 * 1024
#: Maximum total number of shifted list items.
_SHIFTED_MAX: Final = 100_000_000
#: Maximum characters of a library message in a response.
_MESSAGE_MAX: Final = 1_000
_MESSAGE: Final = "the server rejected our request due to an error in our request"
_INT64_MAX: Final = 2**63 - 1
_FIELDS: Final = ("op", "path", "from")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_ESCAPE: Final = re.compile(r"~[01]")
_encode_json: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class OperationError(Exception):
    """An operation does not apply; the message is the library's."""


def json_patched(obj: Obj, patch: Any) -> Any:
    """Return an object after the operations of a JSON patch. Raises Refused if one does not apply."""
    operations = _operations(patch)
    if len(operations) > _OPERATIONS_MAX:
        message = f"The allowed maximum operations in a JSON patch is {_OPERATIONS_MAX}, got {len(operations)}"
        raise StatusError(413, "RequestEntityTooLarge", message)
    patching = _Patching(obj)
    try:
        for operation in operations:
            patching.operate(operation)
        patching.check_depth()
    except OperationError as error:
        cause = {"reason": "UnexpectedServerResponse", "message": str(error)[:_MESSAGE_MAX]}
        raise StatusError(422, "Invalid", _MESSAGE, {"causes": [cause]}) from error
    return patching.document


def strict_faults(patch: Any, duplicates: Sequence[str]) -> list[str]:
    """Return the errors of strict decoding: duplicate fields and unknown fields of operations."""
    known = {*_FIELDS, "value"}
    unknown = [
        f'unknown field "[{number}].{name}"'
        for number, operation in enumerate(_operations(patch))
        for name in operation
        if name not in known
    ]
    return [f"json patch {fault}" for fault in (*duplicates, *unknown)]


def _operations(patch: Any) -> Sequence[Mapping[str, Any]]:
    if patch is None:
        return []
    if not isinstance(patch, list):
        raise _undecodable(_go_kind(patch), "Go value of type []handlers.jsonPatchOp")
    for operation in patch:
        if operation is not None and not isinstance(operation, Mapping):
            raise _undecodable(_go_kind(operation), "Go value of type handlers.jsonPatchOp")
        for name in _FIELDS:
            value = (operation or {}).get(name)
            if value is not None and not isinstance(value, str):
                raise _undecodable(_go_kind(value), f"Go struct field jsonPatchOp.{name} of type string")
    return [operation or {} for operation in patch]


def _undecodable(kind: str, place: str) -> StatusError:
    return bad_request(f"error decoding patch: json: cannot unmarshal {kind} into {place}")


def _go_kind(value: Any) -> str:
    """Name the type of a JSON value as Go's decoder does."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


class _Patching:
    """A document under modification, and the cost so far."""

    def __init__(self, obj: Obj) -> None:
        self.document: Any = obj
        #: Mappings and lists copied by this patch, by id; they may be modified.
        self._own: dict[int, Any] = {}
        self._copied = 0
        self._shifted = 0

    def operate(self, operation: Mapping[str, Any]) -> None:
        """Apply one operation."""
        match operation.get("op"):
            case "add":
                self._add(_pointer(operation, "add"), operation.get("value"))
            case "remove":
                self._remove(_pointer(operation, "remove"))
            case "replace":
                self._replace(_pointer(operation, "replace", "operation missing path field: "), operation)
            case "move":
                self._move(operation)
            case "copy":
                self._copy(operation)
            case "test":
                self._test(_pointer(operation, "test", "operation missing path field: "), operation.get("value"))
            case kind:
                raise OperationError(f"Unexpected kind: {'unknown' if kind is None else kind}")

    def check_depth(self) -> None:
        """Raise OperationError if the document is nested deeper than a body may be."""
        if is_too_deep(_encoded(self.document).decode()):
            raise OperationError("exceeded max depth")

    def _add(self, path: str, value: Any) -> None:
        steps = self._steps(path, f'add operation does not apply: doc is missing path: "{path}"')
        self._insert(steps, value, f"error in add for path: '{path}'")

    def _remove(self, path: str) -> None:
        steps = self._steps(path, f'remove operation does not apply: doc is missing path: "{path}"')
        self._delete(steps, f"error in remove for path: '{path}'")

    def _replace(self, path: str, operation: Mapping[str, Any]) -> None:
        value = operation.get("value")
        if not path:
            if not isinstance(value, list | Mapping):
                raise OperationError("replace operation value must be object or array")
            self.document = value
            return
        steps = self._steps(path, f"replace operation does not apply: doc is missing path: {path}")
        inside = self._at(steps[:-1])
        if isinstance(inside, list):
            try:
                index = _index(inside, steps[-1])
            except OperationError as error:
                message = f"replace operation does not apply: doc is missing key: {path}: missing value"
                raise OperationError(message) from error
            self._own_at(steps[:-1])[index] = value
        else:
            self._own_at(steps[:-1])[steps[-1]] = value

    def _move(self, operation: Mapping[str, Any]) -> None:
        source = _pointer(operation, "move", "operation, missing from field: ", "from")
        steps = self._steps(source, f"move operation does not apply: doc is missing from path: {source}")
        about = f"error in move for path: '{steps[-1]}'"
        value = self._get(steps, about)
        self._delete(steps, about)
        path = _pointer(operation, "move", "operation missing path field: ")
        steps = self._steps(path, f"move operation does not apply: doc is missing destination path: {path}")
        self._insert(steps, value, f"error in move for path: '{path}'")

    def _copy(self, operation: Mapping[str, Any]) -> None:
        source = _pointer(operation, "copy", "operation, missing from field: ", "from")
        steps = self._steps(source, f"copy operation does not apply: doc is missing from path: {source}")
        value = self._get(steps, f"error in copy for from: '{source}'")
        path = _pointer(operation, "copy")
        steps = self._steps(path, f"copy operation does not apply: doc is missing destination path: {path}")
        self._insert(steps, self._duplicate(value), "error while adding value during copy")

    def _test(self, path: str, wanted: Any) -> None:
        if path:
            steps = self._steps(path, f"test operation does not apply: is missing path: {path}")
            value = self._get(steps, f"error in test for path: '{path}'")
        else:
            value = self.document
        if not _equal(value, wanted):
            raise OperationError(f"testing value {path} failed: test failed")

    def _steps(self, path: str, missing: str) -> list[str]:
        """Return the steps of a path. Raises OperationError if its parent is not a mapping or list."""
        steps = [_unescaped(step) for step in path.split("/")[1:]]
        if steps:
            try:
                inside = self._at(steps[:-1])
            except OperationError:
                inside = None
            if isinstance(inside, list | Mapping):
                return steps
        raise OperationError(f"{missing}: missing value")

    def _at(self, steps: Sequence[str]) -> Any:
        """Return the value at a path; None if there is none."""
        inside = self.document
        for step in steps:
            if isinstance(inside, list):
                inside = inside[_index(inside, step)]
            elif isinstance(inside, Mapping):
                inside = inside.get(step)
            else:
                return None
        return inside

    def _get(self, steps: Sequence[str], about: str) -> Any:
        """Return the value at a path; None if a mapping lacks it."""
        try:
            return self._at(steps)
        except OperationError as error:
            raise OperationError(f"{about}: {error}") from error

    def _insert(self, steps: Sequence[str], value: Any, about: str) -> None:
        inside, step = self._own_at(steps[:-1]), steps[-1]
        if isinstance(inside, MutableMapping):
            inside[step] = value
            return
        try:
            index = len(inside) if step == "-" else _insertion_index(inside, step)
        except OperationError as error:
            raise OperationError(f"{about}: {error}") from error
        self._count_shift(len(inside) - index)
        inside.insert(index, value)

    def _delete(self, steps: Sequence[str], about: str) -> None:
        inside, step = self._own_at(steps[:-1]), steps[-1]
        if isinstance(inside, MutableMapping):
            if step not in inside:
                raise OperationError(f"{about}: Unable to remove nonexistent key: {step}: missing value")
            del inside[step]
            return
        try:
            index = _index(inside, step)
        except OperationError as error:
            raise OperationError(f"{about}: {error}") from error
        self._count_shift(len(inside) - index)
        del inside[index]

    def _count_shift(self, places: int) -> None:
        self._shifted += places
        if self._shifted > _SHIFTED_MAX:
            raise OperationError("the patch moves too many list items")

    def _duplicate(self, value: Any) -> Any:
        encoded = _encoded(value)
        self._copied += len(encoded)
        if self._copied > _COPIED_MAX:
            size = f"the accumulated size increase of copy is {self._copied}, exceeding the limit {_COPIED_MAX}"
            raise OperationError(f"Unable to complete the copy, {size}")
        return _decode(encoded)

    def _own_at(self, steps: Sequence[str]) -> Any:
        """Return the mapping or list at a path, after copying it and its ancestors."""
        self.document = inside = self._owned(self.document)
        for step in steps:
            place = _index(inside, step) if isinstance(inside, list) else step
            inside[place] = inside = self._owned(inside[place])
        return inside

    def _owned(self, value: Any) -> Any:
        if id(value) in self._own or not isinstance(value, list | Mapping):
            return value
        copied = list(value) if isinstance(value, list) else dict(value)
        self._own[id(copied)] = copied
        return copied


def _encoded(value: Any) -> bytes:
    try:
        return _encode_json(value)
    except RecursionError as error:
        raise OperationError("exceeded max depth") from error


def _pointer(operation: Mapping[str, Any], kind: str, detail: str = "", field: str = "path") -> str:
    pointer: str | None = operation.get(field)
    if pointer is None:
        raise OperationError(f"{kind} operation failed to decode {field}: {detail}missing value")
    return pointer


def _unescaped(step: str) -> str:
    return _ESCAPE.sub(lambda found: "/" if found[0] == "~1" else "~", step) if "~" in step else step


def _equal(value: Any, wanted: Any) -> bool:
    """Compare two JSON values by type and value: 1, 1.0 and true differ. The smaller one bounds the cost."""
    if isinstance(value, Mapping):
        if not isinstance(wanted, Mapping) or len(value) != len(wanted):
            return False
        return all(name in wanted and _equal(inside, wanted[name]) for name, inside in value.items())
    if isinstance(value, list):
        return isinstance(wanted, list) and len(value) == len(wanted) and all(map(_equal, value, wanted))
    return type(value) is type(wanted) and bool(value == wanted)


def _insertion_index(items: Sequence[Any], step: str) -> int:
    """Return the index of a new item; a negative index counts from after the last item, as in the library."""
    try:
        index = _parsed_integer(step)
    except OperationError as error:
        raise OperationError(f"value was not a proper array index: '{step}': {error}") from error
    return _bounded(index, len(items) + 1)


def _index(items: Sequence[Any], step: str) -> int:
    """Return the index of an item; a negative one counts from the last item."""
    return _bounded(_parsed_integer(step), len(items))


def _parsed_integer(text: str) -> int:
    """Read a whole number as Go's `strconv.Atoi` does."""
    if not _INTEGER.fullmatch(text):
        raise OperationError(f"strconv.Atoi: parsing {_encode_json(text).decode()}: invalid syntax")
    digits = text.lstrip("+-0")
    value = int(digits or "0") if len(digits) <= len(str(_INT64_MAX)) else _INT64_MAX + 2
    value = -value if text.startswith("-") else value
    if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
        raise OperationError(f"strconv.Atoi: parsing {_encode_json(text).decode()}: value out of range")
    return value


def _bounded(index: int, length: int) -> int:
    if not -length <= index < length:
        raise OperationError(f"Unable to access invalid index: {index}: invalid index referenced")
    return index + length if index < 0 else index
