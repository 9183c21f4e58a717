"""Errors of the API, each with the field and the remedy.

FieldError      one fault of one field, in the words of the API
InvalidObject   all faults of an object at once (an ApiError)
Conflict        another writer came first, or the object already exists (an ApiError)
NotFound        no such object (an ApiError)
Forbidden       an admission plugin or webhook rejects the request (an ApiError)
Unanswered      the server did not respond, or the response is not valid (an ApiError)
NamespaceTerminating  a new object is rejected because its Namespace is terminating (Forbidden)
RefusedForNow   a new object is rejected because of quota, limits or a missing account (Forbidden)
"""

from collections.abc import Sequence
from typing import NamedTuple


class FieldError(NamedTuple):
    """One fault: `path: problem; remedy`. Paths are Kubernetes's: `spec.resourceGroups[0].flavors[1].name`."""

    path: str
    problem: str
    remedy: str = ""
    #: The webhook that reports the fault after the API's own validation passed; '' if it is the API.
    webhook: str = ""

    def __str__(self) -> str:
        """`path: problem; remedy`, without empty parts."""
        place = f"{self.path}: " if self.path else ""
        return f"{place}{self.problem}; {self.remedy}" if self.remedy else f"{place}{self.problem}"


class ApiError(Exception):
    """A request that the API rejected; `reason` is Kubernetes's."""

    reason = "InternalError"


class InvalidObject(ApiError):  # noqa: N818 - named as the reasons of Kubernetes
    """The object violates the rules of its kind."""

    reason = "Invalid"

    def __init__(self, faults: Sequence[FieldError]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)


class Conflict(ApiError):  # noqa: N818
    """The object was changed by another writer, or already exists."""

    reason = "Conflict"


class NotFound(ApiError):  # noqa: N818
    """The object does not exist."""

    reason = "NotFound"


class Forbidden(ApiError):  # noqa: N818
    """The request is valid and not allowed."""

    reason = "Forbidden"


class NamespaceTerminating(Forbidden):
    """A new object in a Namespace that is being deleted; the name is Kubernetes's cause."""


class RefusedForNow(Forbidden):
    """A rejection that may not persist: a retry may succeed after other objects are deleted or limits change."""


class Unanswered(ApiError):  # noqa: N818
    """The server did not respond, or the response is not valid: the outcome of the request is unknown."""

    reason = "ServerTimeout"
