"""Requests, responses and errors as values: what lies between the wire and the registry."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from batchyard.api.errors import FieldError
from batchyard.apiserver.auth.authentication import ANONYMOUS, User

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
#: Between the values of a header that was sent more than once; none can hold it.
SEPARATOR: Final = "\n"
_FALSE: Final = frozenset({"false", "0"})


class Request(NamedTuple):
    """One request. Names of headers are in lower case; of a query parameter given twice the first counts."""

    method: str
    path: str
    query: Mapping[str, str] = MappingProxyType({})
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""
    user: User = ANONYMOUS
    #: The address it came from.
    source: str = ""
    #: All that its query says, in order.
    said: tuple[tuple[str, str], ...] = ()

    def made_by(self, user: User) -> "Request":
        """The request as that of another user."""
        return Request(self.method, self.path, self.query, self.headers, self.body, user, self.source, self.said)

    def saying(self, body: bytes) -> "Request":
        """The request with its body."""
        return Request(self.method, self.path, self.query, self.headers, body, self.user, self.source, self.said)

    def all_of(self, name: str) -> list[str]:
        """All values of a query parameter that may be given several times."""
        return [value for key, value in self.said if key == name]

    def flag(self, name: str) -> bool:
        """Whether a query parameter is there and does not say false, as Kubernetes' runtime/conversion.go reads it."""
        value = self.query.get(name)
        return value is not None and value.lower() not in _FALSE


class Response(NamedTuple):
    """The answer: its status code and the object that is its body."""

    code: int
    body: Any
    warnings: tuple[str, ...] = ()
    content_type: str = JSON
    #: After how many seconds to ask again.
    retry_after: int | None = None
    #: What else its head says: names in lower case, and values.
    headers: tuple[tuple[str, str], ...] = ()
    #: The annotations of its audit event.
    annotations: Mapping[str, str] = MappingProxyType({})


#: Kubernetes answers so, and clients make a Status of it that names what they asked for.
NO_SUCH_PATH: Final = Response(404, "404 page not found\n", content_type=TEXT)


class Refused(Exception):  # noqa: N818 - as a person would say it
    """The request is refused, as a Status of reason and code; details as `metav1.StatusDetails` has them."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or {}
        #: The annotations of its audit event.
        self.annotations: Mapping[str, str] = {}

    def response(self) -> Response:
        """The Status that says so."""
        status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        status |= {"message": str(self), "reason": self.reason}
        if self.details:
            status["details"] = self.details
        retry_after = self.details.get("retryAfterSeconds")
        body = {**status, "code": self.code}
        return Response(self.code, body, retry_after=retry_after, annotations=self.annotations)


def bad_request(message: str) -> Refused:
    """The request cannot be understood."""
    return Refused(400, "BadRequest", message)


def method_not_allowed() -> Refused:
    """What is at that path takes no such request."""
    return Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def causes_of(faults: tuple[FieldError, ...]) -> list[dict[str, str]]:
    """Faults as the causes of a Status; the reason is what the problem begins with, in one word."""
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
