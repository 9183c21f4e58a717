"""What can be wrong with an object, each time with the place and the remedy.

FieldError      one fault of one field, in the words of the API
InvalidObject   all faults of an object at once (an ApiError)
Conflict        somebody else wrote first, or the object is already there (an ApiError)
NotFound        no such object (an ApiError)
Forbidden       an admission plugin or webhook refuses the request (an ApiError)
Unanswered      the server has not answered, or not with what can be understood (an ApiError)
NamespaceTerminating  a new object is refused because its Namespace is to go (Forbidden)
RefusedForNow   a new object is refused for what there is besides it: quota, limits, a missing account (Forbidden)
"""

from collections.abc import Sequence
from typing import NamedTuple


class FieldError(NamedTuple):
    """One fault: `path: problem; remedy`. Paths are Kubernetes's: `spec.resourceGroups[0].flavors[1].name`."""

    path: str
    problem: str
    remedy: str = ""
    #: The webhook that says so, after the API itself has nothing to say; '' if it is the API.
    webhook: str = ""

    def __str__(self) -> str:
        """`path: problem; remedy`, leaving out what is empty."""
        place = f"{self.path}: " if self.path else ""
        return f"{place}{self.problem}; {self.remedy}" if self.remedy else f"{place}{self.problem}"


class ApiError(Exception):
    """The API refused a request; `reason` is Kubernetes's."""

    reason = "InternalError"


class InvalidObject(ApiError):  # noqa: N818 - named as the reasons of Kubernetes
    """The object breaks the rules of its kind."""

    reason = "Invalid"

    def __init__(self, faults: Sequence[FieldError]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)


class Conflict(ApiError):  # noqa: N818
    """The object was changed by somebody else, or is already there."""

    reason = "Conflict"


class NotFound(ApiError):  # noqa: N818
    """There is no such object."""

    reason = "NotFound"


class Forbidden(ApiError):  # noqa: N818
    """The request was understood and is not allowed."""

    reason = "Forbidden"


class NamespaceTerminating(Forbidden):
    """Nothing may come into a Namespace that is to go; this is Kubernetes's name for the cause."""


class RefusedForNow(Forbidden):
    """What was refused may be allowed later, as it is: others go, or bounds are moved."""


class Unanswered(ApiError):  # noqa: N818
    """The server has not answered, or not with what can be understood: nobody knows what has become of the request."""

    reason = "ServerTimeout"
