"""JSON patches. Source: RFC 6902, and what k8s.io/apiserver's pkg/endpoints/handlers/patch.go refuses."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.apiserver.request import Refused, bad_request

_OPERATIONS_MAX: Final = 10_000


def json_patched(obj: Obj, patch: Any) -> Any:
    """An object after the operations of a JSON patch; Refused where one of them cannot be done."""
    if not isinstance(patch, Sequence) or isinstance(patch, str) or not all(isinstance(op, Mapping) for op in patch):
        raise bad_request("a JSON patch is a list of operations")
    if len(patch) > _OPERATIONS_MAX:
        told = f"The allowed maximum operations in a JSON patch is {_OPERATIONS_MAX}, got {len(patch)}"
        raise Refused(413, "RequestEntityTooLarge", told)
    result: Any = obj
    for number, operation in enumerate(patch):
        try:
            result = _operated(result, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Refused(422, "Invalid", f"the server rejected our request: operation {number}: {error}") from error
    return result


def _operated(document: Any, operation: Mapping[str, Any]) -> Any:
    """A document after one operation; it is not changed itself."""
    steps = _steps(operation["path"])
    match operation["op"]:
        case "add":
            return _changed(document, steps, "add", operation["value"])
        case "replace":
            return _changed(document, steps, "replace", operation["value"])
        case "remove":
            return _changed(document, steps, "remove", None)
        case "copy":
            return _changed(document, steps, "add", _at(document, _steps(operation["from"])))
        case "move":
            source = _steps(operation["from"])
            value = _at(document, source)
            return _changed(_changed(document, source, "remove", None), steps, "add", value)
        case "test":
            if _at(document, steps) != operation["value"]:
                raise ValueError(f"testing value {operation['path']} failed")
            return document
    raise ValueError(f"Unexpected kind: {operation['op']}")


def _steps(pointer: Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise ValueError(f"{pointer!r} is no JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _at(document: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        document = document[_index(document, step)] if isinstance(document, list) else document[step]
    return document


def _changed(document: Any, steps: Sequence[str], how: str, value: Any) -> Any:
    """A copy of a document, changed at a place."""
    if not steps:
        return None if how == "remove" else value
    step, rest = steps[0], steps[1:]
    if isinstance(document, list):
        return _list_changed(document, step, rest, how, value)
    if not isinstance(document, Mapping):
        raise KeyError(f"there is no {step!r} in what is no object")
    result = dict(document)
    if rest:
        result[step] = _changed(document[step], rest, how, value)
    elif how == "remove":
        del result[step]
    elif how == "replace" and step not in document:
        raise ValueError(f"replace operation does not apply: doc is missing key: {step}")
    else:
        result[step] = value
    return result


def _list_changed(document: list[Any], step: str, rest: Sequence[str], how: str, value: Any) -> list[Any]:
    result = list(document)
    if step == "-" and how == "add" and not rest:
        return [*result, value]
    index = _index(document, step, beyond=how == "add" and not rest)
    if rest:
        result[index] = _changed(document[index], rest, how, value)
    elif how == "add":
        result.insert(index, value)
    elif how == "remove":
        del result[index]
    else:
        result[index] = value
    return result


def _index(document: Sequence[Any], step: str, *, beyond: bool = False) -> int:
    if not step.isdecimal() or len(step) > 9 or int(step) >= len(document) + beyond:
        raise ValueError(f"{step!r} is no index of a list of {len(document)}")
    return int(step)
