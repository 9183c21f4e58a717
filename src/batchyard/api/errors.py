"""Exceptions for failed API requests, and FieldError, which describes one invalid field of an object.

FieldError            one error in one field of an object, worded as Kubernetes does
InvalidObject         all field errors of an object at once (an ApiError)
Conflict              another client changed the object first, or the object already exists (an ApiError)
NotFound              the object does not exist (an ApiError)
Forbidden             authorization, an admission plugin or a webhook rejects the request (an ApiError)
NoValidResponse       the server did not respond, or the response is not valid (an ApiError)
NamespaceTerminating  a new object is rejected because its Namespace is terminating (Forbidden)
TemporarilyForbidden  a retry may succeed, for example after a quota or a permission changes (Forbidden)
"""

from collections.abc import Sequence
from typing import NamedTuple


class FieldError(NamedTuple):
    """An error in one field of an object. `path` is written as Kubernetes does: `spec.groups[0].flavors[1].name`."""

    path: str
    problem: str
    remedy: str = ""
    #: The webhook that reports the error; '' if the API server's own validation reports it.
    webhook: str = ""
    #: The line of the file, from 1, if the file's parser reports the error; else 0.
    line: int = 0
    #: The feature gate without which the error is not reported; '' if it is always reported.
    gate: str = ""

    def __str__(self) -> str:
        """Return `path: problem (line N); remedy`, or `line N: problem; remedy`, without empty parts."""
        line_text = f"line {self.line}" if self.line else ""
        prefix = self.path or line_text
        line_note = f" ({line_text})" if self.path and line_text else ""
        text = f"{prefix}: {self.problem}{line_note}" if prefix else self.problem
        return f"{text}; {self.remedy}" if self.remedy else text


class ApiError(Exception):
    """The base class of failed API requests; `reason` is the machine-readable `reason` of Kubernetes's Status."""

    reason = "InternalError"


class InvalidObject(ApiError):  # noqa: N818 - named as the reasons of Kubernetes
    """The API server rejected an object that violates the validation rules of its kind."""

    reason = "Invalid"

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.faults = tuple(errors)


class Conflict(ApiError):  # noqa: N818
    """The API server rejected a write: another client changed the object first, or an object of this name exists."""

    reason = "Conflict"


class NotFound(ApiError):  # noqa: N818
    """The requested object does not exist."""

    reason = "NotFound"


class Forbidden(ApiError):  # noqa: N818
    """Authorization, an admission plugin or a webhook rejected a request for a valid object."""

    reason = "Forbidden"


class NamespaceTerminating(Forbidden):
    """A new object is rejected because its Namespace is being deleted."""


class TemporarilyForbidden(Forbidden):
    """A Forbidden error that may not persist: a retry may succeed, for example after a quota or permission changes."""


class NoValidResponse(ApiError):  # noqa: N818
    """The server did not respond, or the response is not valid: the outcome of the request is unknown."""

    reason = "ServerTimeout"
