"""AdmissionReviews: the request to a webhook, the checks of its response, and the errors that clients receive.

Sources: k8s.io/apiserver, pkg/admission/plugin/webhook/{request,errors}, pkg/util/webhook/error.go.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.validation.rules import format_json
from batchyard.apiserver.admission.attributes import AdmissionAttributes, review_fields
from batchyard.apiserver.admission.calls import WebhookCallError, WebhookReply, WebhookRequest, internal_error
from batchyard.apiserver.admission.registrations import Webhook
from batchyard.apiserver.json_patch import apply_json_patch
from batchyard.apiserver.request import StatusError, bad_request

_GROUP: Final = "admission.k8s.io"
_KIND: Final = "AdmissionReview"
_VERSIONS: Final = ("v1", "v1beta1")
_JSON_PATCH: Final = "JSONPatch"
_NO_VERSION: Final = "webhook does not accept known AdmissionReview versions (v1, v1beta1)"
_INVALID_RESPONSE: Final = "received invalid webhook response: "
#: The text of a Status that webhooks send without a code is reported with this code.
_DEFAULT_DENIAL_CODE: Final = 400
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class AdmissionVerdict(NamedTuple):
    """The checked response of a webhook."""

    allowed: bool
    #: The JSON patch operations; empty for validating webhooks.
    patch: Sequence[Any] = ()
    #: The Status of a denial.
    result: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    audit_annotations: Mapping[str, str] = {}


def encode_review(webhook: Webhook, attributes: AdmissionAttributes, version: str, uid: str) -> WebhookRequest:
    """Return the call of a webhook for a request, with the objects of `attributes` in a version of the resource.

    Raises WebhookCallError if the webhook accepts no known version of AdmissionReview, and StatusError (400) if it has
    side effects and the request is a dry run.
    """
    definition = webhook.definition
    if attributes.dry_run and definition.get("sideEffects") not in {"None", "NoneOnDryRun"}:
        raise bad_request(f'admission webhook "{webhook.name}" does not support dry run')
    request = {
        "uid": uid,
        **review_fields(attributes, version),
        "object": attributes.obj,
        "oldObject": attributes.old_object,
    }
    review_version = _review_version(definition)
    review = {"kind": _KIND, "apiVersion": f"{_GROUP}/{review_version}", "request": request}
    timeout_seconds = definition.get("timeoutSeconds") or 10
    return WebhookRequest(webhook.uid, definition["clientConfig"], timeout_seconds, _encode(review))


def _review_version(definition: Mapping[str, Any]) -> str:
    versions: Sequence[str] = definition.get("admissionReviewVersions") or ()
    version = next((version for version in versions if version in _VERSIONS), None)
    if version is None:
        raise WebhookCallError(f"could not create admission objects: {_NO_VERSION}", 400)
    return version


def read_verdict(webhook: Webhook, reply: WebhookReply, uid: str) -> AdmissionVerdict:
    """Check the response of a webhook and return its verdict. Raises WebhookCallError if the call failed."""
    if isinstance(reply, WebhookCallError):
        raise WebhookCallError(f"failed to call webhook: {reply}", reply.code)
    try:
        review = _decode(reply)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"failed to call webhook: couldn't get version/kind; json parse error: {error}"
        raise WebhookCallError(message) from error
    review = review if isinstance(review, Mapping) else {}
    response = review.get("response")
    if not isinstance(response, Mapping):
        raise WebhookCallError(f"{_INVALID_RESPONSE}webhook response was absent")
    is_strict = _review_version(webhook.definition) == "v1"
    if is_strict:
        _check_identity(review, response, uid)
    patch = _patch_of(webhook, response, is_strict=is_strict)
    annotations, warnings = response.get("auditAnnotations"), response.get("warnings")
    result = response.get("status")
    return AdmissionVerdict(
        response.get("allowed") is True,
        patch,
        result if isinstance(result, Mapping) else None,
        tuple(map(str, warnings)) if isinstance(warnings, list) else (),
        {str(k): str(v) for k, v in annotations.items()} if isinstance(annotations, Mapping) else {},
    )


def _check_identity(review: Mapping[str, Any], response: Mapping[str, Any], uid: str) -> None:
    response_uid = response.get("uid") or ""
    if response_uid != uid:
        expectation = f"expected response.uid={format_json(uid)}, got {format_json(response_uid)}"
        raise WebhookCallError(_INVALID_RESPONSE + expectation)
    api_version, kind = review.get("apiVersion") or "", review.get("kind") or ""
    if (api_version, kind) != (f"{_GROUP}/v1", _KIND):
        received = f"{api_version or '/'}, Kind={kind}"
        expectation = f"expected webhook response of {_GROUP}/v1, Kind={_KIND}, got {received}"
        raise WebhookCallError(_INVALID_RESPONSE + expectation)


def _patch_of(webhook: Webhook, response: Mapping[str, Any], *, is_strict: bool) -> Sequence[Any]:
    encoded_patch, patch_type = response.get("patch"), response.get("patchType")
    if not webhook.is_mutating:
        if is_strict and encoded_patch:
            raise WebhookCallError(f"{_INVALID_RESPONSE}validating webhook may not return response.patch")
        if is_strict and patch_type is not None:
            raise WebhookCallError(f"{_INVALID_RESPONSE}validating webhook may not return response.patchType")
        return ()
    if is_strict and encoded_patch and patch_type is None:
        raise WebhookCallError(f"{_INVALID_RESPONSE}webhook returned response.patch but not response.patchType")
    if is_strict and not encoded_patch and patch_type is not None:
        raise WebhookCallError(f"{_INVALID_RESPONSE}webhook returned response.patchType but not response.patch")
    if is_strict and patch_type == "":
        raise WebhookCallError(f'{_INVALID_RESPONSE}webhook returned invalid response.patchType of ""')
    if not encoded_patch:
        return ()
    try:
        patch = _decode(base64.b64decode(str(encoded_patch), validate=True))
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WebhookCallError(f"received undecodable patch in webhook response: {error}") from error
    if not isinstance(patch, list):
        raise WebhookCallError("received undecodable patch in webhook response: the patch is not a list")
    if patch and is_strict and patch_type != _JSON_PATCH:
        raise WebhookCallError(f"unsupported patch type {format_json(patch_type)}")
    return patch


def apply_webhook_patch(webhook: Webhook, obj: Mapping[str, Any] | None, patch: Sequence[Any]) -> Any:
    """Return an object after the patch of a webhook. Raises StatusError (500) if it does not apply."""
    if obj is None:
        message = f'admission webhook "{webhook.name}" attempted to modify the object, which is not supported for'
        raise internal_error(f"{message} this operation")
    try:
        return apply_json_patch(obj, list(patch))
    except StatusError as error:
        causes = error.details.get("causes")
        raise internal_error(causes[0]["message"] if causes else str(error)) from error


# Errors for clients.


def denial(webhook: Webhook, result: Mapping[str, Any] | None) -> StatusError:
    """Return the error of a request that a webhook denied, from the Status in its response."""
    status = dict(result or {})
    code, message, reason = status.get("code"), status.get("message"), status.get("reason")
    denied_text = f'admission webhook "{webhook.name}" denied the request'
    if message:
        text = f"{denied_text}: {message}"
    else:
        text = f"{denied_text}: {reason}" if reason else f"{denied_text} without explanation"
    is_error_code = isinstance(code, int) and code >= _DEFAULT_DENIAL_CODE
    details = status.get("details")
    return StatusError(
        code if is_error_code and code is not None else _DEFAULT_DENIAL_CODE,
        str(reason or ""),
        text,
        details if isinstance(details, Mapping) else None,
    )


def call_failure(webhook: Webhook, error: WebhookCallError) -> StatusError:
    """Return the error of a request that requires a webhook that could not be called."""
    return internal_error(f'failed calling webhook "{webhook.name}": {error}')
