"""Audit events at the level Metadata, without bodies.

Source: k8s.io/apiserver, pkg/apis/audit/v1, pkg/audit/request.go and pkg/endpoints/filters/audit.go.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlencode

from batchyard.api.times import format_micro_time
from batchyard.apiserver.auth.authorization import attributes_of
from batchyard.apiserver.request import ApiRequest, Response, StatusError
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.responses import AnyResponse
from batchyard.base.instant import Instant


class AuditedRequest(NamedTuple):
    """An answered request."""

    #: With the authenticated user.
    known: ApiRequest
    #: With the impersonated user, if any.
    acting: ApiRequest
    path: ResourcePath | None
    answer: AnyResponse
    #: Whether an unexpected exception ended the request.
    is_defect: bool = False


#: The audited response of an unexpected exception; the server log has the traceback.
DEFECT: Final = StatusError(500, "InternalError", "APIServer panic'd: see the server log")
Auditor: TypeAlias = Callable[[AuditedRequest], None]


def audit_event(audited: AuditedRequest, now: Instant, number: int) -> Mapping[str, Any]:
    """Return the audit event of a request; `number` counts the events since the start."""
    request, path, answer = audited.known, audited.path, audited.answer
    query = f"?{urlencode(request.query_items or request.query)}" if request.query else ""
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": f"{now:x}-{number}",
        "stage": _stage(audited),
        "requestURI": request.path + query,
        "verb": attributes_of(audited.acting, path).verb,
        "user": request.user.reported(),
        "sourceIPs": [request.source],
        "userAgent": request.headers.get("user-agent", ""),
        "responseStatus": _status(answer),
        "stageTimestamp": format_micro_time(now),
    }
    if audited.acting.user != request.user:
        event["impersonatedUser"] = audited.acting.user.reported()
    if path is not None:
        event["objectRef"] = _reference(path)
    if isinstance(answer, Response) and answer.annotations:
        event["annotations"] = dict(answer.annotations)
    return event


def no_audit(_audited: AuditedRequest) -> None:
    """Discard the event."""


def _stage(audited: AuditedRequest) -> str:
    if audited.is_defect:
        return "Panic"
    return "ResponseComplete" if isinstance(audited.answer, Response) else "ResponseStarted"


def _reference(path: ResourcePath) -> Mapping[str, str]:
    reference = {"resource": path.info.plural, "namespace": path.namespace, "name": path.name}
    reference |= {"apiGroup": path.info.group, "apiVersion": path.version, "subresource": path.subresource}
    return {field: value for field, value in reference.items() if value}


def _status(answer: AnyResponse) -> Mapping[str, Any]:
    """Return the response status: the code, and for errors the reason."""
    if not isinstance(answer, Response):
        return {"code": 200}
    body = answer.body if answer.code >= 400 and isinstance(answer.body, Mapping) else {}
    reported = {field: body[field] for field in ("status", "message", "reason") if field in body}
    return {**reported, "code": answer.code}
