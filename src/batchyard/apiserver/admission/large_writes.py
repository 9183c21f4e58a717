"""Steps of the admission of large writes that run in forked processes, and the encoding of their results."""

from collections.abc import Callable, Mapping
from typing import Any

from batchyard.api.meta import Key
from batchyard.apiserver.admission.attributes import PolicyVerdict
from batchyard.apiserver.admission.calls import WebhookCalls
from batchyard.apiserver.conversions import ConversionNeeded, ConversionScope
from batchyard.apiserver.handlers.prepared_writes import (
    PreparedWrite,
    decode_outcome,
    encode_outcome,
    write_from_json,
    write_to_json,
)
from batchyard.apiserver.handlers.write import WriteDraft, WriteHandler
from batchyard.apiserver.request import ApiRequest, StatusError, parse_write_options
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.serialization import RequestBody, content_type_of


def complete_or_none(handler: WriteHandler, draft: WriteDraft) -> PreparedWrite | None:
    """Return the completed draft; None if its object is invalid, which a mutating webhook may correct."""
    try:
        return handler.complete_draft(draft)
    except StatusError as error:
        if error.reason != "Invalid":
            raise
        return None


class LargeDraft:
    """The draft of a large write: a forked process reads it, and the server's thread receives the result."""

    def __init__(self, handler: WriteHandler, request: ApiRequest, path: ResourcePath) -> None:
        self._handler = handler
        self._request = request
        self._path = path

    def prepare(self) -> Mapping[str, Any]:
        """Read and complete the draft, and return it as fields for JSON. Raises StatusError on failure."""
        draft = self._handler.read_draft(self._request, self._path)
        prepared_write = complete_or_none(self._handler, draft)
        stored_object = draft.stored_object
        return {
            "body": draft.body.value,
            "faults": draft.body.faults,
            "name": draft.path.name,
            "version": "" if stored_object is None else stored_object["metadata"]["resourceVersion"],
            "managed_fields": draft.managed_fields,
            "is_created": draft.is_created,
            "write": None if prepared_write is None else write_to_json(prepared_write),
        }

    def read(self, outcome: bytes | StatusError, scope: ConversionScope) -> WebhookCalls:
        """Return the draft and its write (None if the object is invalid) from an outcome.

        If objects must be converted first, call their webhook and return None, so that the draft is prepared again.
        Return None also if the stored object has changed. Raises StatusError if the write failed.
        """
        try:
            fields = decode_outcome(outcome)
        except ConversionNeeded as need:
            yield from need.converter.calls(need.objects, need.api_version, scope)
            return None
        path, request = self._path._replace(name=fields["name"]), self._request
        stored_object = None
        if fields["version"]:
            stored_object = self._handler.objects.get(Key(path.served_kind.constant, path.namespace, path.name))
            if stored_object is None or stored_object["metadata"]["resourceVersion"] != fields["version"]:
                return None
        options = parse_write_options(request, content_type_of(request) if request.method == "PATCH" else "")
        body = RequestBody(fields["body"], tuple(fields["faults"]))
        draft = WriteDraft(
            body, path, options, stored_object, None, fields["managed_fields"], is_created=fields["is_created"]
        )
        return draft, None if fields["write"] is None else write_from_json(fields["write"])


def encode_verdict(validate: Callable[[], PolicyVerdict]) -> bytes:
    """Encode the verdict of the validating policies, or the StatusError with which they deny a request."""

    def compute() -> Mapping[str, Any]:
        verdict = validate()
        return {"warnings": verdict.warnings, "annotations": verdict.annotations}

    return encode_outcome(compute)


def decode_verdict(outcome: bytes | StatusError) -> PolicyVerdict:
    """Decode a verdict that `encode_verdict` encoded. Raises StatusError if the policies deny the request."""
    fields = decode_outcome(outcome)
    return PolicyVerdict(None, tuple(fields["warnings"]), fields["annotations"])
