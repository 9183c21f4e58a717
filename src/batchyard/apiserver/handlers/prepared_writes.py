"""Prepared writes: complete and validated, and not stored yet. Forked processes prepare large ones, and encode them."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from batchyard.api.meta import Obj
from batchyard.apiserver.conversions import ConversionNeeded, raise_conversion
from batchyard.apiserver.request import StatusError, UserInfo
from batchyard.interfaces.client import Create, Update, UpdateStatus

#: Maximum bytes of a body that is processed inline; the costliest take a few hundredths of a second.
INLINE_BODY_MAX: Final = 32 * 1024
#: The number of attempts to prepare a write whose object changes meanwhile. Source: k8s.io/apiserver,
#: pkg/endpoints/handlers/patch.go (maxRetryWhenPatchConflicts).
PREPARE_ATTEMPTS_MAX: Final = 5


class PreparedWrite(NamedTuple):
    """A complete, validated write that is not stored yet, with the status code and warnings of its response."""

    write: Create | Update | UpdateStatus
    name: str
    dry_run: bool
    code: int
    warnings: tuple[str, ...]
    #: The resourceVersion of the stored object that the write is based on; '' for a create.
    base_version: str
    #: The annotations of the audit event.
    annotations: Mapping[str, str] = {}


class WriteExecutor(Protocol):
    """Prepares large writes outside the API server's thread."""

    def submit(
        self, user: UserInfo, work: Callable[[], bytes], on_result: Callable[[bytes | StatusError], None]
    ) -> None:
        """Run a function for a user; the API server's thread later calls `on_result` with its result.

        Raises StatusError if too many functions of that user are queued.
        """


def encode_prepared_write(prepare: Callable[[], PreparedWrite]) -> bytes:
    """Encode the write that `prepare` returns, or the StatusError or ConversionNeeded that it raises, as bytes."""
    return encode_outcome(lambda: write_to_json(prepare()))


def encode_outcome(compute: Callable[[], Any]) -> bytes:
    """Encode the value that a function returns, or the StatusError or ConversionNeeded that it raises, as bytes."""
    try:
        return msgspec.json.encode({"value": compute()})
    except StatusError as error:
        error_fields = {"code": error.code, "reason": error.reason, "message": str(error), "details": error.details}
        return msgspec.json.encode({**error_fields, "annotations": error.annotations})
    except ConversionNeeded as need:
        return msgspec.json.encode(need.to_json())


def decode_outcome(outcome: bytes | StatusError) -> Any:
    """Decode a value that `encode_outcome` encoded, or raise the encoded exception.

    Raises StatusError if the input is an error, or is empty, which means that the function timed out.
    """
    if isinstance(outcome, StatusError):
        raise outcome
    if not outcome:
        message = "the request did not complete within the allotted time"
        raise StatusError(504, "Timeout", message, {"retryAfterSeconds": 5})
    fields = msgspec.json.decode(outcome)
    if "converter" in fields:
        raise_conversion(fields)
    if "value" in fields:
        return fields["value"]
    error = StatusError(fields["code"], fields["reason"], fields["message"], fields["details"])
    error.annotations = fields["annotations"]
    raise error


def write_to_json(prepared_write: PreparedWrite) -> dict[str, Any]:
    """Return a prepared write as fields for JSON."""
    write = prepared_write.write
    write_fields: dict[str, Any] = {**prepared_write._asdict(), "write": type(write).__name__, "obj": write.obj}
    if not isinstance(write, Create):
        write_fields["managed_fields"] = write.managed_fields
    if isinstance(write, Update):
        write_fields["is_whole"] = write.is_whole
    if isinstance(write, UpdateStatus):
        write_fields["with_metadata"] = write.with_metadata
    return write_fields


def decode_prepared_write(encoded_write: bytes | StatusError) -> PreparedWrite:
    """Decode a write that `encode_prepared_write` encoded. Raises as `decode_outcome` does."""
    return write_from_json(decode_outcome(encoded_write))


def write_from_json(fields: dict[str, Any]) -> PreparedWrite:
    """Return a prepared write from the fields of `write_to_json`."""
    plain_fields = {field: fields[field] for field in ("name", "dry_run", "code", "base_version", "annotations")}
    return PreparedWrite(_decode_write(fields), warnings=tuple(fields["warnings"]), **plain_fields)


def _decode_write(fields: dict[str, Any]) -> Create | Update | UpdateStatus:
    obj: Obj = fields["obj"]
    if fields["write"] == "Create":
        return Create(obj)
    if fields["write"] == "Update":
        return Update(obj, fields["managed_fields"], is_whole=fields["is_whole"])
    return UpdateStatus(obj, fields["managed_fields"], with_metadata=fields["with_metadata"])
