"""JSON patches. Source: RFC 6902, and what k8s.io/apiserver's pkg/endpoints/handlers/patch.go refuses.

Only what the operations touch is copied, once, however many there are: all else stays the very same, and whoever looks
at it afterwards sees so at once. What a few bytes of a patch can cost is bounded: what it copies, and how far it moves
the items of lists.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

import msgspec

from batchyard.api.meta import Obj
from batchyard.apiserver.request import Refused, bad_request

_OPERATIONS_MAX: Final = 10_000
#: Bytes that all copies of a patch may have.
_COPIED_MAX: Final = 3 * 1024 * 1024
#: By how many places in all the items of lists may be moved.
_SHIFTED_MAX: Final = 100_000_000
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def json_patched(obj: Obj, patch: Any) -> Any:
    """An object after the operations of a JSON patch; Refused where one of them cannot be done."""
    if not isinstance(patch, Sequence) or isinstance(patch, str) or not all(isinstance(op, Mapping) for op in patch):
        raise bad_request("a JSON patch is a list of operations")
    if len(patch) > _OPERATIONS_MAX:
        told = f"The allowed maximum operations in a JSON patch is {_OPERATIONS_MAX}, got {len(patch)}"
        raise Refused(413, "RequestEntityTooLarge", told)
    patching = _Patching(obj)
    for number, operation in enumerate(patch):
        try:
            patching.operate(operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Refused(422, "Invalid", f"the server rejected our request: operation {number}: {error}") from error
    return patching.document


class _Patching:
    """A document that is changed, and what that has cost so far."""

    def __init__(self, obj: Obj) -> None:
        self.document: Any = obj
        #: The mappings and lists that are copies of this patch, by identity: they may be changed.
        self._own: dict[int, Any] = {}
        self._copied = 0
        self._shifted = 0

    def operate(self, operation: Mapping[str, Any]) -> None:
        """Do one operation."""
        steps = _steps(operation["path"])
        match operation["op"]:
            case "add" | "replace" as how:
                self._change(steps, how, operation["value"])
            case "remove":
                self._change(steps, "remove", None)
            case "copy":
                self._change(steps, "add", self._copy(_steps(operation["from"])))
            case "move":
                source = _steps(operation["from"])
                if steps[: len(source)] == source and len(steps) > len(source):
                    raise ValueError(f"{operation['from']} cannot be moved into itself")
                value = _at(self.document, source)
                self._change(source, "remove", None)
                self._change(steps, "add", value)
            case "test":
                if _at(self.document, steps) != operation["value"]:
                    raise ValueError(f"testing value {operation['path']} failed")
            case unknown:
                raise ValueError(f"Unexpected kind: {unknown}")

    def _copy(self, source: Sequence[str]) -> Any:
        encoded = _encode(_at(self.document, source))
        self._copied += len(encoded)
        if self._copied > _COPIED_MAX:
            told = f"the accumulated size increase of copy is {self._copied}, exceeding the limit {_COPIED_MAX}"
            raise ValueError(f"Unable to complete the copy, {told}")
        return _decode(encoded)

    def _change(self, steps: Sequence[str], how: str, value: Any) -> None:
        """Change a place of the document."""
        if not steps:
            self.document = None if how == "remove" else value
            return
        inside, step = self._own_at(steps[:-1]), steps[-1]
        if isinstance(inside, list):
            self._change_list(inside, step, how, value)
        elif isinstance(inside, MutableMapping):
            _change_mapping(inside, step, how, value)
        else:
            raise KeyError(f"there is no {step!r} in what is no object")

    def _own_at(self, steps: Sequence[str]) -> Any:
        """What is at a place, it and all on the way there copied."""
        self.document = inside = self._owned(self.document)
        for step in steps:
            if isinstance(inside, list):
                index = _index(inside, step)
                inside[index] = inside = self._owned(inside[index])
            else:
                inside[step] = inside = self._owned(inside[step])
        return inside

    def _owned(self, value: Any) -> Any:
        if id(value) in self._own or not isinstance(value, list | Mapping):
            return value
        copied = list(value) if isinstance(value, list) else dict(value)
        self._own[id(copied)] = copied
        return copied

    def _change_list(self, items: list[Any], step: str, how: str, value: Any) -> None:
        index = len(items) if step == "-" and how == "add" else _index(items, step, beyond=how == "add")
        if how == "replace":
            items[index] = value
            return
        self._shifted += len(items) - index
        if self._shifted > _SHIFTED_MAX:
            raise ValueError("the patch moves too many items of lists")
        if how == "add":
            items.insert(index, value)
        else:
            del items[index]


def _change_mapping(inside: MutableMapping[str, Any], step: str, how: str, value: Any) -> None:
    if how == "remove":
        del inside[step]
    elif how == "replace" and step not in inside:
        raise ValueError(f"replace operation does not apply: doc is missing key: {step}")
    else:
        inside[step] = value


def _steps(pointer: Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise ValueError(f"{pointer!r} is no JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _at(document: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        document = document[_index(document, step)] if isinstance(document, list) else document[step]
    return document


def _index(document: Sequence[Any], step: str, *, beyond: bool = False) -> int:
    """A place in a list; less than none counts from its end, beyond what is taken with Kubernetes' library for it."""
    length = len(document) + beyond
    if not step.removeprefix("-").isdecimal() or len(step) > 9 or not -length <= int(step) < length:
        raise ValueError(f"{step!r} is no index of a list of {len(document)}")
    return int(step) % length
