"""JSON patches with the semantics and messages of the library that the Kubernetes API server uses.

Of the patched object, only the mappings and lists on the path of an operation are copied. The rest keeps its identity,
so that unchanged parts are detected cheaply. The bytes of `copy` operations and the shifted list items are limited.
Sources: RFC 6902; github.com/evanphx/json-patch v4, patch.go; k8s.io/apiserver's pkg/endpoints/handlers/patch.go.
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
_COPIED_BYTES_MAX: Final = 3 * 1024 * 1024
#: Maximum total number of shifted list items.
_SHIFTED_ITEMS_MAX: Final = 100_000_000
#: Maximum characters of a library message in a response.
_MESSAGE_LENGTH_MAX: Final = 1_000
_REJECTED_MESSAGE: Final = "the server rejected our request due to an error in our request"
_INT64_MAX: Final = 2**63 - 1
_STRING_FIELDS: Final = ("op", "path", "from")
_INTEGER_PATTERN: Final = re.compile(r"[+-]?[0-9]+")
_ESCAPE_PATTERN: Final = re.compile(r"~[01]")
_encode_json: Final = msgspec.json.Encoder().encode
_decode_json: Final = msgspec.json.Decoder().decode


class OperationError(Exception):
    """A JSON patch does not apply or exceeds a limit."""


def apply_json_patch(obj: Obj, patch: Any) -> Any:
    """Return an object after a JSON patch. Raises StatusError if the patch is invalid, too large or does not apply."""
    operations = _parse_operations(patch)
    if len(operations) > _OPERATIONS_MAX:
        message = f"The allowed maximum operations in a JSON patch is {_OPERATIONS_MAX}, got {len(operations)}"
        raise StatusError(413, "RequestEntityTooLarge", message)
    patched_document = _PatchedDocument(obj)
    try:
        for operation in operations:
            patched_document.apply_operation(operation)
        patched_document.check_depth()
    except OperationError as error:
        cause = {"reason": "UnexpectedServerResponse", "message": str(error)[:_MESSAGE_LENGTH_MAX]}
        raise StatusError(422, "Invalid", _REJECTED_MESSAGE, {"causes": [cause]}) from error
    return patched_document.document


def json_patch_strict_errors(patch: Any, duplicate_faults: Sequence[str]) -> list[str]:
    """Return the strict decoding errors of a JSON patch: `duplicate_faults`, and unknown fields of operations."""
    known_fields = {*_STRING_FIELDS, "value"}
    unknown_field_faults = [
        f'unknown field "[{index}].{name}"'
        for index, operation in enumerate(_parse_operations(patch))
        for name in operation
        if name not in known_fields
    ]
    return [f"json patch {fault}" for fault in (*duplicate_faults, *unknown_field_faults)]


def _parse_operations(patch: Any) -> Sequence[Mapping[str, Any]]:
    if patch is None:
        return []
    if not isinstance(patch, list):
        raise _decode_error(_go_kind(patch), "Go value of type []handlers.jsonPatchOp")
    for operation in patch:
        if operation is not None and not isinstance(operation, Mapping):
            raise _decode_error(_go_kind(operation), "Go value of type handlers.jsonPatchOp")
        for name in _STRING_FIELDS:
            value = (operation or {}).get(name)
            if value is not None and not isinstance(value, str):
                raise _decode_error(_go_kind(value), f"Go struct field jsonPatchOp.{name} of type string")
    return [operation or {} for operation in patch]


def _decode_error(kind: str, go_type: str) -> StatusError:
    return bad_request(f"error decoding patch: json: cannot unmarshal {kind} into {go_type}")


def _go_kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


class _PatchedDocument:
    def __init__(self, obj: Obj) -> None:
        self.document: Any = obj
        #: Mappings and lists copied by this patch, by id; they may be modified.
        self._copies: dict[int, Any] = {}
        self._copied_bytes = 0
        self._shifted_items = 0

    def apply_operation(self, operation: Mapping[str, Any]) -> None:
        match operation.get("op"):
            case "add":
                self._add(_read_pointer(operation, "add"), operation.get("value"))
            case "remove":
                self._remove(_read_pointer(operation, "remove"))
            case "replace":
                self._replace(_read_pointer(operation, "replace", "operation missing path field: "), operation)
            case "move":
                self._move(operation)
            case "copy":
                self._copy(operation)
            case "test":
                self._test(_read_pointer(operation, "test", "operation missing path field: "), operation.get("value"))
            case kind:
                raise OperationError(f"Unexpected kind: {'unknown' if kind is None else kind}")

    def check_depth(self) -> None:
        if is_too_deep(_encode_bounded_depth(self.document).decode()):
            raise OperationError("exceeded max depth")

    def _add(self, path: str, value: Any) -> None:
        steps = self._parse_path(path, f'add operation does not apply: doc is missing path: "{path}"')
        self._insert(steps, value, f"error in add for path: '{path}'")

    def _remove(self, path: str) -> None:
        steps = self._parse_path(path, f'remove operation does not apply: doc is missing path: "{path}"')
        self._delete(steps, f"error in remove for path: '{path}'")

    def _replace(self, path: str, operation: Mapping[str, Any]) -> None:
        value = operation.get("value")
        if not path:
            if not isinstance(value, list | Mapping):
                raise OperationError("replace operation value must be object or array")
            self.document = value
            return
        steps = self._parse_path(path, f"replace operation does not apply: doc is missing path: {path}")
        parent = self._value_at(steps[:-1])
        if isinstance(parent, list):
            try:
                index = _item_index(parent, steps[-1])
            except OperationError as error:
                message = f"replace operation does not apply: doc is missing key: {path}: missing value"
                raise OperationError(message) from error
            self._writable_at(steps[:-1])[index] = value
        else:
            self._writable_at(steps[:-1])[steps[-1]] = value

    def _move(self, operation: Mapping[str, Any]) -> None:
        source_path = _read_pointer(operation, "move", "operation, missing from field: ", "from")
        steps = self._parse_path(source_path, f"move operation does not apply: doc is missing from path: {source_path}")
        error_prefix = f"error in move for path: '{steps[-1]}'"
        value = self._read_value(steps, error_prefix)
        self._delete(steps, error_prefix)
        path = _read_pointer(operation, "move", "operation missing path field: ")
        steps = self._parse_path(path, f"move operation does not apply: doc is missing destination path: {path}")
        self._insert(steps, value, f"error in move for path: '{path}'")

    def _copy(self, operation: Mapping[str, Any]) -> None:
        source_path = _read_pointer(operation, "copy", "operation, missing from field: ", "from")
        steps = self._parse_path(source_path, f"copy operation does not apply: doc is missing from path: {source_path}")
        value = self._read_value(steps, f"error in copy for from: '{source_path}'")
        path = _read_pointer(operation, "copy")
        steps = self._parse_path(path, f"copy operation does not apply: doc is missing destination path: {path}")
        self._insert(steps, self._copy_value(value), "error while adding value during copy")

    def _test(self, path: str, expected_value: Any) -> None:
        if path:
            steps = self._parse_path(path, f"test operation does not apply: is missing path: {path}")
            value = self._read_value(steps, f"error in test for path: '{path}'")
        else:
            value = self.document
        if not _is_equal(value, expected_value):
            raise OperationError(f"testing value {path} failed: test failed")

    def _parse_path(self, path: str, missing_message: str) -> list[str]:
        steps = [_unescape_step(step) for step in path.split("/")[1:]]
        if steps:
            try:
                parent = self._value_at(steps[:-1])
            except OperationError:
                parent = None
            if isinstance(parent, list | Mapping):
                return steps
        raise OperationError(f"{missing_message}: missing value")

    def _value_at(self, steps: Sequence[str]) -> Any:
        value = self.document
        for step in steps:
            if isinstance(value, list):
                value = value[_item_index(value, step)]
            elif isinstance(value, Mapping):
                value = value.get(step)
            else:
                return None
        return value

    def _read_value(self, steps: Sequence[str], error_prefix: str) -> Any:
        try:
            return self._value_at(steps)
        except OperationError as error:
            raise OperationError(f"{error_prefix}: {error}") from error

    def _insert(self, steps: Sequence[str], value: Any, error_prefix: str) -> None:
        parent, step = self._writable_at(steps[:-1]), steps[-1]
        if isinstance(parent, MutableMapping):
            parent[step] = value
            return
        try:
            index = len(parent) if step == "-" else _insertion_index(parent, step)
        except OperationError as error:
            raise OperationError(f"{error_prefix}: {error}") from error
        self._count_shifted_items(len(parent) - index)
        parent.insert(index, value)

    def _delete(self, steps: Sequence[str], error_prefix: str) -> None:
        parent, step = self._writable_at(steps[:-1]), steps[-1]
        if isinstance(parent, MutableMapping):
            if step not in parent:
                raise OperationError(f"{error_prefix}: Unable to remove nonexistent key: {step}: missing value")
            del parent[step]
            return
        try:
            index = _item_index(parent, step)
        except OperationError as error:
            raise OperationError(f"{error_prefix}: {error}") from error
        self._count_shifted_items(len(parent) - index)
        del parent[index]

    def _count_shifted_items(self, item_count: int) -> None:
        self._shifted_items += item_count
        if self._shifted_items > _SHIFTED_ITEMS_MAX:
            raise OperationError(f"the patch shifts more than {_SHIFTED_ITEMS_MAX} list items; use a merge patch")

    def _copy_value(self, value: Any) -> Any:
        encoded_value = _encode_bounded_depth(value)
        self._copied_bytes += len(encoded_value)
        if self._copied_bytes > _COPIED_BYTES_MAX:
            problem = f"the accumulated size increase of copy is {self._copied_bytes}"
            raise OperationError(f"Unable to complete the copy, {problem}, exceeding the limit {_COPIED_BYTES_MAX}")
        return _decode_json(encoded_value)

    def _writable_at(self, steps: Sequence[str]) -> Any:
        """Return a copy of the mapping or list at a path; it and its ancestors are copied once per patch."""
        self.document = value = self._make_writable(self.document)
        for step in steps:
            index_or_key = _item_index(value, step) if isinstance(value, list) else step
            value[index_or_key] = value = self._make_writable(value[index_or_key])
        return value

    def _make_writable(self, value: Any) -> Any:
        if id(value) in self._copies or not isinstance(value, list | Mapping):
            return value
        copied_value = list(value) if isinstance(value, list) else dict(value)
        self._copies[id(copied_value)] = copied_value
        return copied_value


def _encode_bounded_depth(value: Any) -> bytes:
    try:
        return _encode_json(value)
    except RecursionError as error:
        raise OperationError("exceeded max depth") from error


def _read_pointer(operation: Mapping[str, Any], kind: str, error_detail: str = "", field: str = "path") -> str:
    pointer: str | None = operation.get(field)
    if pointer is None:
        raise OperationError(f"{kind} operation failed to decode {field}: {error_detail}missing value")
    return pointer


def _unescape_step(step: str) -> str:
    return _ESCAPE_PATTERN.sub(lambda match: "/" if match[0] == "~1" else "~", step) if "~" in step else step


def _is_equal(value: Any, expected_value: Any) -> bool:
    """Return whether two JSON values have the same types and values: 1, 1.0 and true differ."""
    if isinstance(value, Mapping):
        if not isinstance(expected_value, Mapping) or len(value) != len(expected_value):
            return False
        return all(name in expected_value and _is_equal(child, expected_value[name]) for name, child in value.items())
    if isinstance(value, list):
        return (
            isinstance(expected_value, list)
            and len(value) == len(expected_value)
            and all(map(_is_equal, value, expected_value))
        )
    return type(value) is type(expected_value) and bool(value == expected_value)


def _insertion_index(list_items: Sequence[Any], step: str) -> int:
    try:
        index = _parse_integer(step)
    except OperationError as error:
        raise OperationError(f"value was not a proper array index: '{step}': {error}") from error
    return _check_index(index, len(list_items) + 1)


def _item_index(list_items: Sequence[Any], step: str) -> int:
    return _check_index(_parse_integer(step), len(list_items))


def _parse_integer(text: str) -> int:
    if not _INTEGER_PATTERN.fullmatch(text):
        raise OperationError(f"strconv.Atoi: parsing {_encode_json(text).decode()}: invalid syntax")
    significant_digits = text.lstrip("+-0")
    value = int(significant_digits or "0") if len(significant_digits) <= len(str(_INT64_MAX)) else _INT64_MAX + 2
    value = -value if text.startswith("-") else value
    if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
        raise OperationError(f"strconv.Atoi: parsing {_encode_json(text).decode()}: value out of range")
    return value


def _check_index(index: int, list_length: int) -> int:
    if not -list_length <= index < list_length:
        raise OperationError(f"Unable to access invalid index: {index}: invalid index referenced")
    return index + list_length if index < 0 else index
