"""Requests, responses and errors as values, between transport and registry."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from batchyard.api.errors import FieldError
from batchyard.apiserver.auth.authentication import ANONYMOUS, UserInfo

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
#: Joins the values of a repeated header; header values cannot contain it.
SEPARATOR: Final = "\n"
_FALSE: Final = frozenset({"false", "0"})


class ApiRequest(NamedTuple):
    """A request. Header names are in lower case; of repeated query parameters the first value is used."""

    method: str
    path: str
    query: Mapping[str, str] = MappingProxyType({})
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""
    user: UserInfo = ANONYMOUS
    #: The client address.
    source: str = ""
    #: All query parameters in order, including repeated ones.
    query_items: tuple[tuple[str, str], ...] = ()

    def made_by(self, user: UserInfo) -> "ApiRequest":
        """Return the request with another user."""
        return ApiRequest(
            self.method, self.path, self.query, self.headers, self.body, user, self.source, self.query_items
        )

    def with_body(self, body: bytes) -> "ApiRequest":
        """Return the request with a body."""
        return ApiRequest(
            self.method, self.path, self.query, self.headers, body, self.user, self.source, self.query_items
        )

    def all_of(self, name: str) -> list[str]:
        """Return all values of a repeatable query parameter."""
        return [value for key, value in self.query_items if key == name]

    def flag(self, name: str) -> bool:
        """Report whether a query parameter is present and not false, as in Kubernetes' runtime/conversion.go."""
        value = self.query.get(name)
        return value is not None and value.lower() not in _FALSE


class Response(NamedTuple):
    """A response: status code, and an object as body."""

    code: int
    body: Any
    warnings: tuple[str, ...] = ()
    content_type: str = JSON
    #: The Retry-After header in seconds.
    retry_after: int | None = None
    #: Further headers: names in lower case, and values.
    headers: tuple[tuple[str, str], ...] = ()
    #: The annotations of the audit event.
    annotations: Mapping[str, str] = MappingProxyType({})


#: As in Kubernetes; clients convert it to a Status that names the requested object.
NO_SUCH_PATH: Final = Response(404, "404 page not found\n", content_type=TEXT)


class StatusError(Exception):
    """The request is rejected with a Status of this code and reason; `details` as in `metav1.StatusDetails`."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or {}
        #: The annotations of the audit event.
        self.annotations: Mapping[str, str] = {}

    def response(self) -> Response:
        """Return the Status as a response."""
        status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        status |= {"message": str(self), "reason": self.reason}
        if self.details:
            status["details"] = self.details
        retry_after = self.details.get("retryAfterSeconds")
        body = {**status, "code": self.code}
        return Response(self.code, body, retry_after=retry_after, annotations=self.annotations)


def bad_request(message: str) -> StatusError:
    """Return a 400 error for a malformed request."""
    return StatusError(400, "BadRequest", message)


def method_not_allowed() -> StatusError:
    """Return a 405 error."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def causes_of(faults: tuple[FieldError, ...]) -> list[dict[str, str]]:
    """Convert field errors to causes of a Status; the start of the problem determines the reason."""
    return [
        {"reason": _reason_of(fault.problem), "message": fault.problem, "field": fault.path or "<nil>"}
        for fault in faults
    ]


_REASONS: Final = {
    "Required value": "FieldValueRequired",
    "Invalid value": "FieldValueInvalid",
    "Unsupported value": "FieldValueNotSupported",
    "Duplicate value": "FieldValueDuplicate",
    "Forbidden": "FieldValueForbidden",
    "Not found": "FieldValueNotFound",
    "Too long": "FieldValueTooLong",
    "Too many": "FieldValueTooMany",
}


def _reason_of(problem: str) -> str:
    return next((reason for start, reason in _REASONS.items() if problem.startswith(start)), "FieldValueInvalid")
