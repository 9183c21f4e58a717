"""Large writes are worked out apart from the platform's thread, in a fork; that thread only stores the result."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from batchyard.api.meta import Obj
from batchyard.apiserver.auth.authentication import User
from batchyard.apiserver.request import Refused
from batchyard.interfaces.client import Create, Update, UpdateStatus

#: Bytes of a body that is worked out at once: the costliest take a few hundredths of a second.
SMALL_MAX: Final = 32 * 1024
#: How often a write is worked out anew where its object has changed meanwhile. Source: k8s.io/apiserver,
#: pkg/endpoints/handlers/patch.go (maxRetryWhenPatchConflicts).
ATTEMPTS_MAX: Final = 5


class Prepared(NamedTuple):
    """A write that is checked and complete, and how it is answered."""

    write: Create | Update | UpdateStatus
    name: str
    dry_run: bool
    code: int
    warnings: tuple[str, ...]
    #: The resourceVersion of the stored object that it is based on; '' where there is none.
    based_on: str
    #: The annotations of its audit event.
    annotations: Mapping[str, str] = {}


class Apart(Protocol):
    """Where work is done apart."""

    def ask(self, user: User, work: Callable[[], bytes], done: Callable[[bytes | Refused], None]) -> None:
        """Have work done for a user; `done` gets its result later, in the platform's thread.

        Refused where too much work of that user waits.
        """


def encoded(prepare: Callable[[], Prepared]) -> bytes:
    """What `prepare` returns, or its refusal, as bytes."""
    try:
        prepared = prepare()
    except Refused as refused:
        told = {"code": refused.code, "reason": refused.reason, "message": str(refused), "details": refused.details}
        return msgspec.json.encode(told)
    write = prepared.write
    parts: dict[str, Any] = {**prepared._asdict(), "write": type(write).__name__, "obj": write.obj}
    if not isinstance(write, Create):
        parts["managed_fields"] = write.managed_fields
    if isinstance(write, Update):
        parts["is_whole"] = write.is_whole
    return msgspec.json.encode(parts)


def decoded(sent: bytes | Refused) -> Prepared:
    """The same again; Refused where that is what it is, or where there is no result."""
    if isinstance(sent, Refused):
        raise sent
    if not sent:
        raise Refused(504, "Timeout", "the request did not complete within the allotted time", {"retryAfterSeconds": 5})
    parts = msgspec.json.decode(sent)
    if "reason" in parts:
        raise Refused(parts["code"], parts["reason"], parts["message"], parts["details"])
    about = {field: parts[field] for field in ("name", "dry_run", "code", "based_on", "annotations")}
    return Prepared(_write(parts), warnings=tuple(parts["warnings"]), **about)


def _write(parts: dict[str, Any]) -> Create | Update | UpdateStatus:
    obj: Obj = parts["obj"]
    if parts["write"] == "Create":
        return Create(obj)
    if parts["write"] == "Update":
        return Update(obj, parts["managed_fields"], is_whole=parts["is_whole"])
    return UpdateStatus(obj, parts["managed_fields"])
