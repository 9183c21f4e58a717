"""Large writes: a forked process prepares them, and the platform's thread only stores the result."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from batchyard.api.meta import Obj
from batchyard.apiserver.auth.authentication import UserInfo
from batchyard.apiserver.request import StatusError
from batchyard.interfaces.client import Create, Update, UpdateStatus

#: Maximum bytes of a body that is processed inline; the costliest take a few hundredths of a second.
SMALL_MAX: Final = 32 * 1024
#: The number of attempts to prepare a write whose object changes meanwhile. Source: k8s.io/apiserver,
#: pkg/endpoints/handlers/patch.go (maxRetryWhenPatchConflicts).
ATTEMPTS_MAX: Final = 5


class PreparedWrite(NamedTuple):
    """A validated, complete write and the parameters of its response."""

    write: Create | Update | UpdateStatus
    name: str
    dry_run: bool
    code: int
    warnings: tuple[str, ...]
    #: The resourceVersion of the stored object that the write is based on; '' for a create.
    based_on: str
    #: The annotations of the audit event.
    annotations: Mapping[str, str] = {}


class WriteExecutor(Protocol):
    """An executor outside the platform's thread."""

    def ask(self, user: UserInfo, work: Callable[[], bytes], done: Callable[[bytes | StatusError], None]) -> None:
        """Run work for a user; `done` receives its result later, in the platform's thread.

        Raises Refused if too much work of that user is queued.
        """


def encoded(prepare: Callable[[], PreparedWrite]) -> bytes:
    """Encode the result of `prepare`, or its refusal, as bytes."""
    try:
        prepared = prepare()
    except StatusError as refused:
        reported = {"code": refused.code, "reason": refused.reason, "message": str(refused), "details": refused.details}
        return msgspec.json.encode(reported)
    write = prepared.write
    parts: dict[str, Any] = {**prepared._asdict(), "write": type(write).__name__, "obj": write.obj}
    if not isinstance(write, Create):
        parts["managed_fields"] = write.managed_fields
    if isinstance(write, Update):
        parts["is_whole"] = write.is_whole
    return msgspec.json.encode(parts)


def decoded(sent: bytes | StatusError) -> PreparedWrite:
    """Decode the result of `encoded`. Raises Refused if it is a refusal or empty."""
    if isinstance(sent, StatusError):
        raise sent
    if not sent:
        raise StatusError(
            504, "Timeout", "the request did not complete within the allotted time", {"retryAfterSeconds": 5}
        )
    parts = msgspec.json.decode(sent)
    if "reason" in parts:
        raise StatusError(parts["code"], parts["reason"], parts["message"], parts["details"])
    about = {field: parts[field] for field in ("name", "dry_run", "code", "based_on", "annotations")}
    return PreparedWrite(_write(parts), warnings=tuple(parts["warnings"]), **about)


def _write(parts: dict[str, Any]) -> Create | Update | UpdateStatus:
    obj: Obj = parts["obj"]
    if parts["write"] == "Create":
        return Create(obj)
    if parts["write"] == "Update":
        return Update(obj, parts["managed_fields"], is_whole=parts["is_whole"])
    return UpdateStatus(obj, parts["managed_fields"])
