"""Patches: a JSON patch, a JSON merge patch.

Sources: RFC 6902 and RFC 7396, and what k8s.io/apiserver's pkg/endpoints/handlers/patch.go refuses.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from batchyard.api.meta import Obj
from batchyard.apiserver.request import Refused, Request, bad_request

MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
_decode_json = msgspec.json.Decoder(strict=True).decode
_OPERATIONS_MAX: Final = 10_000


def patched(obj: Obj, request: Request) -> Any:
    """An object after the patch of a request; Refused where that cannot be applied."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip()
    try:
        patch = _decode_json(request.body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the patch is no JSON: {error}") from error
    if content_type == MERGE:
        if not isinstance(patch, Mapping):
            raise bad_request("a merge patch is an object")
        return merged(obj, patch)
    if content_type == JSON_PATCH:
        return _json_patched(obj, patch)
    accepted = f"accepted media types include: {JSON_PATCH}, {MERGE}"
    raise Refused(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {accepted}")


def merged(value: Any, patch: Any) -> Any:
    """A value after a JSON merge patch: objects are merged, null removes, all else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(value) if isinstance(value, Mapping) else {}
    for field, wanted in patch.items():
        if wanted is None:
            result.pop(field, None)
        else:
            result[field] = merged(result.get(field), wanted)
    return result


def _json_patched(obj: Obj, patch: Any) -> Any:
    if not isinstance(patch, Sequence) or isinstance(patch, str) or not all(isinstance(op, Mapping) for op in patch):
        raise bad_request("a JSON patch is a list of operations")
    if len(patch) > _OPERATIONS_MAX:
        raise Refused(413, "RequestEntityTooLarge", f"a JSON patch has at most {_OPERATIONS_MAX} operations")
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
