"""Writes as requests to an API server, and what its answers say of them. Sources: the API's conventions; client-go,
rest/request.go and rest/with_retry.go, for which answers another try may follow.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from batchyard.api import conversion
from batchyard.api.errors import (
    ApiError,
    Conflict,
    FieldError,
    InvalidObject,
    NamespaceTerminating,
    NotFound,
    RefusedForNow,
    Unanswered,
)
from batchyard.api.meta import Obj, group_kind
from batchyard.api.scheme import ServedKind
from batchyard.api.wire_times import in_whole_seconds, times_of
from batchyard.client.resource_paths import path_of
from batchyard.client.transport import HttpAnswer, HttpRequest
from batchyard.interfaces.client import Create, Delete, Update, UpdateStatus, Write

_encode: Final = msgspec.json.Encoder().encode
#: The server is too busy, or not there; it has not done what it was asked for.
_LATER: Final = frozenset({429, 503})
#: Somebody between us and the server gave up.
_LOST: Final = frozenset({0, 502, 504})
_UNKNOWN_USER: Final = 401
_TIMEOUT: Final = 504
_TOO_LARGE: Final = "Too large resource version"
_TOLD_MAX: Final = 200
_SERVERS_OWN: Final = frozenset({"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"})


def kind_of(write: Write) -> str:
    """The kind of what is written."""
    return write.key.kind if isinstance(write, Delete) else group_kind(write.obj)


def namespace_of(write: Write) -> str:
    """The namespace of what is written."""
    if isinstance(write, Delete):
        return write.key.namespace
    namespace: str = write.obj["metadata"].get("namespace") or ""
    return namespace


def name_of(write: Write) -> str:
    """The name of what is written; '' where the server is to make one."""
    if isinstance(write, Delete):
        return write.key.name
    name: str = write.obj["metadata"].get("name") or ""
    return name


def as_sent(obj: Obj, info: ServedKind) -> dict[str, Any]:
    """An object to be written, as the server is to keep it: its times in whole seconds, as every client has them."""
    return in_whole_seconds(dict(obj), times_of(info, info.storage_version))


def request_of(write: Write, info: ServedKind, version: str) -> HttpRequest:
    """The request that does a write."""
    namespace, name = namespace_of(write), name_of(write)
    if isinstance(write, Delete):
        return HttpRequest("DELETE", path_of(info, version, namespace, name), _encode(_options(write)))
    body = _encode(conversion.from_storage(as_sent(write.obj, info), info.api_version_for(version)))
    match write:
        case Create():
            return HttpRequest("POST", path_of(info, version, namespace), body)
        case UpdateStatus():
            return HttpRequest("PUT", path_of(info, version, namespace, name, "status"), body)
        case Update():
            return HttpRequest("PUT", path_of(info, version, namespace, name), body)


def look_at(write: Write, info: ServedKind, version: str) -> HttpRequest:
    """The request that shows what is written: a list of one, which whoever watches a kind may ask for."""
    selector = f"fieldSelector=metadata.name={quote(name_of(write))}"
    return HttpRequest("GET", f"{path_of(info, version, namespace_of(write))}?{selector}")


def looked_at(answer: HttpAnswer) -> Mapping[str, Any]:
    """What such a list shows; nothing where it shows none."""
    items = decoded(answer.body).get("items") or () if answer.code == 200 else ()
    return items[0] if items else {}


def may_try_again(write: Write, answer: HttpAnswer) -> bool:
    """Whether the same request may do what this one has not done, and does no harm if it has.

    A Create that is done twice is refused the second time, unless the server makes the name. An Update names the
    revision it is based on.
    """
    if answer.code in _LATER:
        return True
    if answer.code not in _LOST:
        return answer.code >= 500 and answer.retry_after is not None
    return not answer.was_sent or not isinstance(write, Create) or bool(name_of(write))


def was_maybe_done(answer: HttpAnswer) -> bool:
    """Whether the server may have done what it has not answered."""
    return answer.code in _LOST and answer.was_sent


def error_of(answer: HttpAnswer, write: Write, status: Mapping[str, Any]) -> ApiError | None:
    """What the answer, which is decoded, refuses; None if it does not.

    That something was done is said by the API alone: whoever stands between us and the server says 200 too.
    """
    if 200 <= answer.code < 300 and (is_object(status) or (isinstance(write, Delete) and "kind" in status)):
        return None
    told = str(status.get("message") or answer.trouble or trouble_of(answer))
    if answer.code == 404:
        return NotFound(told)
    if answer.code == 409:
        return Conflict(told)
    if answer.code == 403:  # rights are given and taken, and no watch tells of it
        return NamespaceTerminating(told) if _says(status, "NamespaceTerminating") else RefusedForNow(told)
    if answer.code == 422:
        return InvalidObject(
            [FieldError(cause.get("field", ""), cause.get("message", "")) for cause in _causes(status)]
            or [FieldError("", told)]
        )
    return Unanswered(f"{type(write).__name__} of {namespace_of(write)}/{name_of(write)}: {told}")


def trouble_of(answer: HttpAnswer) -> str:
    """What keeps a request from being done, in words; the same for all requests where it is not for this one alone."""
    if answer.code == 200:
        return f"an answer that is not the API's: {_text_of(answer.body) or 'it is empty'}"
    told = decoded(answer.body).get("message") or answer.trouble or _text_of(answer.body) or "no reason was given"
    if not answer.code:
        return f"no answer: {told}"
    if answer.code == _UNKNOWN_USER:
        return f"{answer.code}: {told}: the server takes none of the credentials of the kubeconfig"
    return f"{answer.code}: {told}"


def is_ahead(answer: HttpAnswer) -> bool:
    """Whether what was asked for lies beyond all that the server knows, which has less than when it told of that.

    Sources: k8s.io/apimachinery, pkg/api/errors (IsTooLargeResourceVersion); client-go, tools/cache/reflector.go.
    """
    return answer.code == _TIMEOUT and _TOO_LARGE in trouble_of(answer)


def decoded(body: bytes) -> Mapping[str, Any]:
    """An object of JSON; nothing where it is none."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def list_in(answer: HttpAnswer) -> Mapping[str, Any] | None:
    """The list of objects that an answer holds; None where it is none.

    Whoever stands between us and the server says 200 too, such as a page where people log in: nothing must be taken to
    be gone because of that.
    """
    found = decoded(answer.body)
    is_list = answer.code == 200 and "items" in found and isinstance(found.get("metadata"), dict)
    items = found.get("items") or ()
    return found if is_list and isinstance(items, list | tuple) and all(map(is_object, items)) else None


def is_object(found: Any) -> bool:
    """Whether something that was decoded is an object of the API: it has a name."""
    return isinstance(found, dict) and isinstance(metadata := found.get("metadata"), dict) and "name" in metadata


def holds(stored: Any, sent: Any) -> bool:
    """Whether what is stored has all that was sent, but for what the server says itself."""
    if isinstance(sent, Mapping):
        return isinstance(stored, Mapping) and all(
            holds(stored.get(field), value) for field, value in sent.items() if field not in _SERVERS_OWN
        )
    if isinstance(sent, list | tuple):
        same = isinstance(stored, list) and len(stored) == len(sent)
        return same and all(map(holds, stored, sent))
    return bool(stored == sent)


def _text_of(body: bytes) -> str:
    """The beginning of an answer that is no Status, in a line."""
    return " ".join(body[:_TOLD_MAX].decode("utf-8", "replace").split())


def _options(write: Delete) -> Obj:
    options: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": write.propagation.value,
    }
    if write.grace is not None:
        options["gracePeriodSeconds"] = write.grace
    if write.uid is not None:
        options["preconditions"] = {"uid": write.uid}
    return options


def _causes(status: Mapping[str, Any]) -> list[Mapping[str, str]]:
    return (status.get("details") or {}).get("causes") or []


def _says(status: Mapping[str, Any], reason: str) -> bool:
    return any(cause.get("reason") == reason for cause in _causes(status))
