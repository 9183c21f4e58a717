"""Writes as requests to an API server, and errors from its responses.

Sources: the API's conventions; client-go, rest/request.go and rest/with_retry.go, for the responses that allow a retry.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from batchyard.api import conversion
from batchyard.api.conversion import in_whole_seconds, times_of
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
from batchyard.client.transport import HttpAnswer, HttpRequest, path_of
from batchyard.interfaces.client import Create, Delete, Update, UpdateStatus, Write

_encode: Final = msgspec.json.Encoder().encode
#: The server is overloaded or unavailable; it has not processed the request.
_LATER: Final = frozenset({429, 503})
#: The connection failed, or a proxy timed out.
_LOST: Final = frozenset({0, 502, 504})
_UNKNOWN_USER: Final = 401
_TIMEOUT: Final = 504
_TOO_LARGE: Final = "Too large resource version"
_BODY_SHOWN_MAX: Final = 200
_SERVERS_OWN: Final = frozenset({"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"})


def kind_of(write: Write) -> str:
    """Return the kind of the written object."""
    return write.key.kind if isinstance(write, Delete) else group_kind(write.obj)


def namespace_of(write: Write) -> str:
    """Return the namespace of the written object."""
    if isinstance(write, Delete):
        return write.key.namespace
    namespace: str = write.obj["metadata"].get("namespace") or ""
    return namespace


def name_of(write: Write) -> str:
    """Return the name of the written object; '' if the server generates it."""
    if isinstance(write, Delete):
        return write.key.name
    name: str = write.obj["metadata"].get("name") or ""
    return name


def as_sent(obj: Obj, info: ServedKind) -> dict[str, Any]:
    """Return an object as it is sent: with times in whole seconds, as every client writes them."""
    return in_whole_seconds(dict(obj), times_of(info, info.storage_version))


def request_of(write: Write, info: ServedKind, version: str) -> HttpRequest:
    """Return the request of a write."""
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


def read_request(write: Write, info: ServedKind, version: str) -> HttpRequest:
    """Return the request that reads the written object: a list of one, which needs only the right to list."""
    selector = f"fieldSelector=metadata.name={quote(name_of(write))}"
    return HttpRequest("GET", f"{path_of(info, version, namespace_of(write))}?{selector}")


def object_in_list(answer: HttpAnswer) -> Mapping[str, Any]:
    """Return the object in such a list, or an empty mapping."""
    items = decoded(answer.body).get("items") or () if answer.code == 200 else ()
    return items[0] if items else {}


def may_try_again(write: Write, answer: HttpAnswer) -> bool:
    """Report whether a retry may succeed, and does no harm if the first try was processed.

    A second Create is rejected, unless the server generates the name. An Update names the revision that it is based on.
    """
    if answer.code in _LATER:
        return True
    if answer.code not in _LOST:
        return answer.code >= 500 and answer.retry_after is not None
    return not answer.was_sent or not isinstance(write, Create) or bool(name_of(write))


def was_maybe_done(answer: HttpAnswer) -> bool:
    """Report whether the server may have processed a request that it did not answer."""
    return answer.code in _LOST and answer.was_sent


def error_of(answer: HttpAnswer, write: Write, status: Mapping[str, Any]) -> ApiError | None:
    """Return the error in a response, given its decoded body; None if it succeeded.

    Only an API object counts as success: a proxy may answer 200 too.
    """
    if 200 <= answer.code < 300 and (is_object(status) or (isinstance(write, Delete) and "kind" in status)):
        return None
    message = str(status.get("message") or answer.trouble or failure_reason(answer))
    if answer.code == 404:
        return NotFound(message)
    if answer.code == 409:
        return Conflict(message)
    if answer.code == 403:  # rights change, and no watch reports it
        return NamespaceTerminating(message) if _says(status, "NamespaceTerminating") else RefusedForNow(message)
    if answer.code == 422:
        return InvalidObject(
            [FieldError(cause.get("field", ""), cause.get("message", "")) for cause in _causes(status)]
            or [FieldError("", message)]
        )
    return Unanswered(f"{type(write).__name__} of {namespace_of(write)}/{name_of(write)}: {message}")


def failure_reason(answer: HttpAnswer) -> str:
    """Describe why a request failed; the text is the same for all requests unless the cause is specific to this one."""
    if answer.code == 200:
        return f"the response is not from the Kubernetes API: {_text_of(answer.body) or 'empty body'}"
    reason = decoded(answer.body).get("message") or answer.trouble or _text_of(answer.body) or "no reason was given"
    if not answer.code:
        return f"no answer: {reason}"
    if answer.code == _UNKNOWN_USER:
        return f"{answer.code}: {reason}: the server rejects the credentials of the kubeconfig"
    return f"{answer.code}: {reason}"


def is_ahead(answer: HttpAnswer) -> bool:
    """Report whether the requested revision is newer than the server's: the server was restored from a backup.

    Sources: k8s.io/apimachinery, pkg/api/errors (IsTooLargeResourceVersion); client-go, tools/cache/reflector.go.
    """
    return answer.code == _TIMEOUT and _TOO_LARGE in failure_reason(answer)


def decoded(body: bytes) -> Mapping[str, Any]:
    """Return a JSON object, or an empty mapping if the body is not one."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def list_in(answer: HttpAnswer) -> Mapping[str, Any] | None:
    """Return the list of objects in a response, or None.

    A proxy may answer 200 too, for example with a login page. That must not look like the deletion of all objects.
    """
    found = decoded(answer.body)
    is_list = answer.code == 200 and "items" in found and isinstance(found.get("metadata"), dict)
    items = found.get("items") or ()
    return found if is_list and isinstance(items, list | tuple) and all(map(is_object, items)) else None


def is_object(found: Any) -> bool:
    """Report whether a decoded value is an API object: it has a name."""
    return isinstance(found, dict) and isinstance(metadata := found.get("metadata"), dict) and "name" in metadata


def holds(stored: Any, sent: Any) -> bool:
    """Report whether a stored object contains all sent fields, except those that the server sets."""
    if isinstance(sent, Mapping):
        return isinstance(stored, Mapping) and all(
            holds(stored.get(field), value) for field, value in sent.items() if field not in _SERVERS_OWN
        )
    if isinstance(sent, list | tuple):
        same = isinstance(stored, list) and len(stored) == len(sent)
        return same and all(map(holds, stored, sent))
    return bool(stored == sent)


def _text_of(body: bytes) -> str:
    """Return the beginning of a body that is no Status, on one line."""
    return " ".join(body[:_BODY_SHOWN_MAX].decode("utf-8", "replace").split())


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
