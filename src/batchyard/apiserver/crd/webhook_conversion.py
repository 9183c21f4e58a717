"""Conversion of custom objects between versions by the webhook of their CustomResourceDefinition.

The module is loaded when the first definition with such a webhook is served. Sources: k8s.io/apiextensions-apiserver,
pkg/apiserver/conversion/{webhook_converter,converter,metrics}.go and pkg/apiserver/customresource_handler.go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from batchyard.api.conversion import cut_metadata_times_to_seconds
from batchyard.api.errors import FieldError
from batchyard.api.manifests import DecodedObject
from batchyard.api.meta import Obj
from batchyard.api.scheme import ServedKind
from batchyard.api.validation import rules
from batchyard.api.validation.rules import format_json
from batchyard.apiserver.admission.calls import TimedReply, WebhookCallError, WebhookCalls, WebhookRequest
from batchyard.apiserver.conversions import ConversionScope, convert, find_converted, register_converter
from batchyard.apiserver.crd.rules import NO_OLD_VALUE, ValidationRules
from batchyard.apiserver.crd.strategy import CustomStrategy
from batchyard.apiserver.crd.values import VALIDATION_RULES, Schema, prune_unknown_fields, uses_keyword, with_defaults
from batchyard.apiserver.request import StatusError
from batchyard.apiserver.serialization import check_json_limits
from batchyard.base.instant import Instant
from batchyard.base.primitives import uid_for

_GROUP: Final = "apiextensions.k8s.io"
_KIND: Final = "ConversionReview"
_V1: Final = "v1"
_REVIEW_VERSIONS: Final = ("v1", "v1beta1")
#: The time limit of a call in seconds. Source: k8s.io/apiserver, pkg/util/webhook/authentication.go.
_TIMEOUT_SECONDS: Final = 30
#: The maximum number of objects in a call, their approximate maximum size in bytes, and the calls made in parallel.
_BATCH_OBJECTS_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 1024 * 1024
_PARALLEL_CALLS_MAX: Final = 4
_CONFORMING_OBJECTS_MAX: Final = 10_000
_SHOWN_BODY_LENGTH_MAX: Final = 1024
_METADATA_MAPS: Final = (("labels", "labels"), ("annotations", "annotation"))
#: The types of failures in metrics.
_CALL_FAILURE: Final = "conversion_webhook_call_failure"
_MALFORMED: Final = "conversion_webhook_malformed_response_failure"
_PARTIAL: Final = "conversion_webhook_partial_response_failure"
_INVALID_OBJECT: Final = "conversion_webhook_invalid_converted_object_failure"
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


ConversionObserver: TypeAlias = Callable[[str, tuple[str, str], str, float], None]
"""Counts a call for a definition, from one version to another.

The arguments are the definition, the two versions, the type of the failure ('' for a success), and the seconds.
"""


class ConversionFailedError(Exception):
    """A conversion failed. The message is the end of the text for clients."""

    def __init__(self, text: str, failure_type: str) -> None:
        super().__init__(text)
        self.failure_type = failure_type


class _ReviewResponse(msgspec.Struct):
    uid: str = ""
    result: dict[str, Any] | None = None
    convertedObjects: list[msgspec.Raw] | None = None  # noqa: N815 - a field of the API


class _Review(msgspec.Struct):
    kind: str = ""
    apiVersion: str = ""  # noqa: N815 - a field of the API
    response: _ReviewResponse | None = None


_decode_review: Final = msgspec.json.Decoder(_Review).decode


class ConversionWebhook:
    """The conversion webhook of a CustomResourceDefinition, and the schemas of its versions by `apiVersion`."""

    def __init__(self, definition: Obj, schemas: Mapping[str, Schema], observe: ConversionObserver) -> None:
        metadata, webhook = definition["metadata"], definition["spec"]["conversion"]["webhook"]
        self._definition: str = metadata["name"]
        self._kind: str = definition["spec"]["names"]["kind"]
        self._client_config = _client_config(webhook["clientConfig"])
        self._review_version = next((v for v in webhook["conversionReviewVersions"] if v in _REVIEW_VERSIONS), None)
        self._schemas = schemas
        self._observe = observe
        self._call_count = 0
        self._key = f"{metadata['uid']}/{metadata.get('generation')}"
        register_converter(self)

    @property
    def key(self) -> str:
        """The identity of the webhook; it changes with the definition."""
        return self._key

    def calls(self, objects: Sequence[Obj], api_version: str, scope: ConversionScope) -> WebhookCalls:
        """Yield the calls that convert objects to a version, receive the replies, and add the results to a scope.

        Raises StatusError if a conversion fails.
        """
        batches = _batches(objects)
        while batch_group := list(islice(batches, _PARALLEL_CALLS_MAX)):
            uids = [self._new_uid() for _ in batch_group]
            requests = [self._request(batch, api_version, uid) for batch, uid in zip(batch_group, uids, strict=True)]
            replies: Sequence[TimedReply] = yield requests
            for batch, uid, reply in zip(batch_group, uids, replies, strict=True):
                for obj, converted_object in zip(batch, self._read(batch, api_version, uid, reply), strict=True):
                    scope.add(self, obj, converted_object)

    def _new_uid(self) -> str:
        self._call_count += 1
        return uid_for(0, self._key, str(self._call_count))

    def _request(self, batch: Sequence[Obj], api_version: str, uid: str) -> WebhookRequest:
        if self._review_version is None:
            raise StatusError(500, "", "no supported conversion review versions")
        objects = [{**obj, "metadata": cut_metadata_times_to_seconds(obj["metadata"])} for obj in batch]
        request = {"uid": uid, "desiredAPIVersion": api_version, "objects": objects}
        review = {"kind": _KIND, "apiVersion": f"{_GROUP}/{self._review_version}", "request": request}
        name = f"conversion_webhook_for_{self._definition}"
        return WebhookRequest(name, self._client_config, _TIMEOUT_SECONDS, _encode(review))

    def _read(self, batch: Sequence[Obj], api_version: str, uid: str, reply: TimedReply) -> Sequence[Obj]:
        own_version = batch[0]["apiVersion"]
        versions = own_version.rpartition("/")[2], api_version.rpartition("/")[2]
        try:
            converted_objects = self._converted_objects(batch, api_version, uid, reply)
        except ConversionFailedError as failure:
            self._observe(self._definition, versions, failure.failure_type, reply.seconds)
            message = f"conversion webhook for {own_version}, Kind={self._kind} {failure}"
            raise StatusError(500, "", message) from failure
        self._observe(self._definition, versions, "", reply.seconds)
        return converted_objects

    def _converted_objects(self, batch: Sequence[Obj], api_version: str, uid: str, reply: TimedReply) -> Sequence[Obj]:
        texts = _converted_texts(reply, self._review_version, uid)
        if len(texts) != len(batch):
            raise ConversionFailedError(f"returned {len(texts)} objects, expected {len(batch)}", _PARTIAL)
        return [
            self._restored(obj, _decode_converted(text, index), api_version, index)
            for index, (obj, text) in enumerate(zip(batch, texts, strict=True))
        ]

    def _restored(self, obj: Obj, converted_object: Mapping[str, Any], api_version: str, index: int) -> Obj:
        """Return a converted object with the metadata of the original, except labels and annotations."""
        received_version, kind = converted_object.get("apiVersion") or "", converted_object.get("kind") or ""
        if received_version != api_version:
            problem = f"invalid groupVersion (expected {api_version}, received {received_version})"
            raise ConversionFailedError(f"returned invalid object at index {index}: {problem}", _INVALID_OBJECT)
        if kind != obj["kind"]:
            problem = f"invalid kind (expected {obj['kind']}, received {kind})"
            raise ConversionFailedError(f"returned invalid object at index {index}: {problem}", _INVALID_OBJECT)
        metadata = converted_object.get("metadata")
        for field, label in (("name", "name"), ("namespace", "namespace"), ("uid", "UID")):
            expected = obj["metadata"].get(field) or ""
            received = (metadata.get(field) or "") if isinstance(metadata, Mapping) else ""
            if expected != received:
                problem = f"must have the same {label}: {expected} != {received}"
                raise ConversionFailedError(f"returned invalid object: {problem}", _INVALID_OBJECT)
        if problem := _metadata_problem(converted_object, obj):
            raise ConversionFailedError(f"returned invalid metadata: {problem}", _INVALID_OBJECT)
        assert isinstance(metadata, Mapping), "the metadata was checked"
        restored_metadata = dict(obj["metadata"])
        for field, _ in _METADATA_MAPS:
            restored_metadata.pop(field, None)
            if metadata.get(field) is not None:
                restored_metadata[field] = metadata[field]
        restored_object: Obj = {**converted_object, "metadata": restored_metadata}
        pruned_object: Obj = prune_unknown_fields(restored_object, self._schemas[api_version])
        return pruned_object


def _client_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    ca_bundle = config.get("caBundle")
    return config if ca_bundle and ca_bundle.strip() else {**config, "caBundle": None}


def _batches(objects: Sequence[Obj]) -> Iterator[Sequence[Obj]]:
    """Split objects into batches of the same version, by their number and their size."""
    batch: list[Obj] = []
    size = 0
    for obj in objects:
        length = len(_encode(obj))
        is_full = len(batch) >= _BATCH_OBJECTS_MAX or size + length > _BATCH_BYTES_MAX
        if batch and (is_full or obj["apiVersion"] != batch[0]["apiVersion"]):
            yield batch
            batch, size = [], 0
        batch.append(obj)
        size += length
    if batch:
        yield batch


def _converted_texts(reply: TimedReply, review_version: str | None, uid: str) -> Sequence[msgspec.Raw]:
    if isinstance(reply.reply, WebhookCallError):
        raise ConversionFailedError(f"failed: {reply.reply}", _CALL_FAILURE)
    try:
        check_json_limits(reply.reply)
        review = _decode_review(reply.reply)
    except StatusError as error:
        raise ConversionFailedError(f"failed: {error}", _CALL_FAILURE) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConversionFailedError(
            f"failed: couldn't get version/kind; json parse error: {error}", _CALL_FAILURE
        ) from error
    if not review.kind:
        shown_body = reply.reply[:_SHOWN_BODY_LENGTH_MAX].decode("utf-8", "replace")
        raise ConversionFailedError(f"failed: Object 'Kind' is missing in '{shown_body}'", _CALL_FAILURE)
    response, is_strict = review.response, review_version == _V1
    if is_strict and (review.apiVersion, review.kind) != (f"{_GROUP}/{_V1}", _KIND):
        received = f"{review.apiVersion or '/'}, Kind={review.kind}"
        raise ConversionFailedError(
            f"failed: expected webhook response of {_GROUP}/{_V1}, Kind={_KIND}, got {received}", _MALFORMED
        )
    if response is None:
        raise ConversionFailedError("failed: no response provided", _MALFORMED)
    if is_strict and response.uid != uid:
        problem = f"expected response.uid={format_json(uid)}, got {format_json(response.uid)}"
        raise ConversionFailedError(f"failed: {problem}", _MALFORMED)
    result = response.result or {}
    status, message = result.get("status") or "", result.get("message") or ""
    if status != "Success":
        text = str(message) or f"response.result.status was '{status}', not 'Success'"
        raise ConversionFailedError(f"failed: {text}", _MALFORMED)
    return response.convertedObjects or ()


def _decode_converted(text: msgspec.Raw, index: int) -> Mapping[str, Any]:
    try:
        converted_object = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"returned invalid converted object at index {index}: {error}"
        raise ConversionFailedError(problem, _INVALID_OBJECT) from error
    if not isinstance(converted_object, dict):
        problem = f"returned invalid converted object at index {index}: the value is not an object"
        raise ConversionFailedError(problem, _INVALID_OBJECT)
    return converted_object


def _metadata_problem(converted_object: Mapping[str, Any], obj: Obj) -> str:
    if "metadata" not in converted_object:
        return "missing metadata in converted object"
    metadata = converted_object["metadata"]
    if not isinstance(metadata, Mapping):
        return f"invalid metadata of type {_go_type(metadata)} in converted object"
    for field, error_field in _METADATA_MAPS:
        value = metadata.get(field)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            return f"invalid metadata.{field} of type {_go_type(value)} in converted object"
        for name, text in value.items():
            if not isinstance(text, str):
                return f"metadata.{field}[{name}] must be a string, but is {_go_type(text)} in converted object"
        if value != (obj["metadata"].get(field) or {}):
            find_errors = rules.label_errors if field == "labels" else rules.annotation_errors
            if errors := list(map(str, find_errors(value, f"metadata.{error_field}"))):
                return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
    return ""


def _go_type(value: Any) -> str:
    match value:
        case None:
            return "<nil>"
        case bool():
            return "bool"
        case int():
            return "int64"
        case float():
            return "float64"
        case str():
            return "string"
        case list():
            return "[]interface {}"
    return "map[string]interface {}"


class WebhookStrategy(CustomStrategy):
    """The kind-specific API logic of a custom kind whose objects a webhook converts.

    An object is defaulted and pruned in the version in which it is sent or stored, and pruned again after its
    conversion. Validation rules are those of the version of the request.
    """

    def __init__(
        self, served_kind: ServedKind, definition: Obj, observe: ConversionObserver, *, is_terminating: bool
    ) -> None:
        super().__init__(served_kind, definition["spec"]["versions"], is_terminating=is_terminating)
        self.webhook = ConversionWebhook(definition, self._schemas, observe)
        self._rules_by_version: dict[str, ValidationRules] = {}
        #: The revisions of objects that are known to conform to their schema, by uid.
        self._conforming_objects: dict[str, Obj] = {}
        #: The version of the object that was decoded last: that of the request whose object is checked next.
        self._decoded_version = served_kind.api_version

    def decode(self, sent_object: Mapping[str, Any], namespace: str, valid_obj: Obj | None = None) -> DecodedObject:
        """Decode a custom object into its storage version, or return its errors.

        Raises ConversionNeeded if the webhook must convert the object first.
        """
        self._decoded_version = sent_object["apiVersion"]
        return super().decode(sent_object, namespace, valid_obj)

    def in_version(self, stored_object: Obj, api_version: str) -> dict[str, Any]:
        """Convert an object to a version. Raises ConversionNeeded if the webhook must convert it first."""
        own_version = stored_object["apiVersion"]
        if own_version == api_version != self._served_kind.api_version:
            return dict(stored_object)  # converted before
        if (known_object := find_converted(self.webhook, stored_object, api_version)) is not None:
            return dict(known_object)  # the object of the request, before its conversion to the storage version
        return dict(self._convert_to_version(self._upgrade_stored_object(stored_object), api_version))

    def check_create(self, new: Obj) -> list[FieldError]:
        """Return the errors of a new object by the CEL validation rules of the version of the request."""
        if self._is_terminating:
            return super().check_create(new)
        validation_rules = self._rules_of(self._decoded_version)
        if validation_rules is None:
            return []
        return list(validation_rules.rule_errors(self.in_version(new, self._decoded_version), NO_OLD_VALUE))

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the errors of an updated object by the CEL validation rules of the version of the request."""
        version = self._decoded_version
        validation_rules = self._rules_of(version)
        if validation_rules is None:
            return []
        return list(validation_rules.rule_errors(self.in_version(new, version), self.render(old, version)))

    def cells(self, stored_object: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of an object in a version."""
        return super().cells(self.in_version(stored_object, api_version), now, api_version)

    def _rules_of(self, api_version: str) -> ValidationRules | None:
        schema = self._schemas[api_version]
        if not uses_keyword(schema, VALIDATION_RULES):
            return None
        if api_version not in self._rules_by_version:
            self._rules_by_version[api_version] = self._compile_rules(schema)
        return self._rules_by_version[api_version]

    def _upgrade_stored_object(self, stored_object: Obj) -> Obj:
        uid, schema = stored_object["metadata"].get("uid", ""), self._schemas.get(stored_object["apiVersion"])
        if schema is None or self._conforming_objects.get(uid) is stored_object:
            return stored_object
        upgraded_object: Obj = with_defaults(prune_unknown_fields(stored_object, schema), schema)
        if upgraded_object != stored_object:
            return upgraded_object
        if uid:
            if len(self._conforming_objects) >= _CONFORMING_OBJECTS_MAX:
                self._conforming_objects.clear()
            self._conforming_objects[uid] = stored_object
        return stored_object

    def _convert_to_version(self, obj: Mapping[str, Any], api_version: str) -> dict[str, Any]:
        return dict(convert(self.webhook, obj, api_version))
