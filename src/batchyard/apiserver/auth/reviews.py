"""Review resources and token requests: a create request asks a question, and the response answers it.

Reviews are not stored. Authorization: SubjectAccessReview, its local and self variants, SelfSubjectRulesReview.
Authentication: TokenReview, SelfSubjectReview, TokenRequest.
Sources: Kubernetes's pkg/registry/{authorization,authentication}, pkg/apis/authorization/validation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj
from batchyard.api.times import format_time
from batchyard.api.validation import rules
from batchyard.apiserver.auth.authorization import RbacAuthorizer, RequestAttributes
from batchyard.apiserver.auth.tokens import ISSUER, ExternalTokens, TokenIssuer
from batchyard.apiserver.request import (
    PENDING_USER,
    ApiRequest,
    DeferredResponse,
    Response,
    StatusError,
    UserInfo,
    bad_request,
    causes_of,
    method_not_allowed_error,
)
from batchyard.apiserver.resources import EndpointHandlers, Resource
from batchyard.apiserver.serialization import read_body
from batchyard.apiserver.virtual_resources import virtual_kind, virtual_resource
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import ObjectReader

AUTHORIZATION: Final = "authorization.k8s.io"
AUTHENTICATION: Final = "authentication.k8s.io"
_VERSION: Final = "v1"
_ATTRIBUTES_REMEDY: Final = "set the attributes of the request"

LaterStatus: TypeAlias = Callable[[Callable[[Mapping[str, Any]], None]], None]
"""Registers a callback, which later gets the status of a review."""
ReviewHandler: TypeAlias = Callable[[ApiRequest, Mapping[str, Any], str], Mapping[str, Any] | LaterStatus]
"""Returns the status of a review, from the request, the spec and the namespace of the path."""
_INVALID_TOKEN_STATUS: Final = {"error": "the token is invalid or has none of the requested audiences"}


class AccessReviews:
    """Serves review resources, such as SubjectAccessReview and TokenReview, from RBAC and the token verifier."""

    def __init__(
        self, rbac: RbacAuthorizer, tokens: TokenIssuer, find_external_tokens: Callable[[], ExternalTokens | None]
    ) -> None:
        """Create the reviews. `find_external_tokens` returns the authenticator of other issuers' tokens, if any."""
        self._rbac = rbac
        self._tokens = tokens
        self._find_external_tokens = find_external_tokens

    def resources(self) -> list[Resource]:
        """Return the review kinds as create-only resources."""
        return [
            _review_resource(AUTHORIZATION, "SelfSubjectAccessReview", self._self_subject_access_review),
            _review_resource(AUTHORIZATION, "SubjectAccessReview", self._subject_access_review),
            _review_resource(
                AUTHORIZATION, "LocalSubjectAccessReview", self._local_subject_access_review, namespaced=True
            ),
            _review_resource(AUTHORIZATION, "SelfSubjectRulesReview", self._self_subject_rules_review),
            _review_resource(AUTHENTICATION, "TokenReview", self._token_review),
            _review_resource(AUTHENTICATION, "SelfSubjectReview", self._self_subject_review),
        ]

    def _self_subject_access_review(self, request: ApiRequest, spec: Obj, _namespace: str) -> Obj:
        return self._decide_access("SelfSubjectAccessReview", request.user, spec)

    def _subject_access_review(self, _request: ApiRequest, spec: Obj, _namespace: str) -> Obj:
        return self._decide_access("SubjectAccessReview", _reviewed_user("SubjectAccessReview", spec), spec)

    def _local_subject_access_review(self, _request: ApiRequest, spec: Obj, namespace: str) -> Obj:
        kind = "LocalSubjectAccessReview"
        user = _reviewed_user(kind, spec)
        if spec.get("nonResourceAttributes"):
            message = "disallowed on this kind of request"
            raise _invalid_review_error(
                kind, rules.invalid("spec.nonResourceAttributes", {}, message, _ATTRIBUTES_REMEDY)
            )
        requested_namespace = _string_field(_object_field(spec, "resourceAttributes"), "namespace")
        if requested_namespace != namespace:
            message = f"must match metadata.namespace: {namespace}"
            path = "spec.resourceAttributes.namespace"
            raise _invalid_review_error(kind, rules.invalid(path, requested_namespace, message, "leave the field out"))
        return self._decide_access(kind, user, spec)

    def _self_subject_rules_review(self, request: ApiRequest, spec: Obj, _namespace: str) -> Obj:
        namespace = _string_field(spec, "namespace")
        if not namespace:
            raise bad_request("no namespace on request")
        rules_json = [rule.to_json() for rule in self._rbac.rules_for(request.user, namespace)]
        return {
            "resourceRules": [rule for rule in rules_json if "resources" in rule],
            "nonResourceRules": [rule for rule in rules_json if "nonResourceURLs" in rule],
            "incomplete": False,
        }

    def _token_review(
        self, request: ApiRequest, spec: Mapping[str, Any], _namespace: str
    ) -> Mapping[str, Any] | LaterStatus:
        token = _string_field(spec, "token")
        if not token:
            raise bad_request("token is required for TokenReview in authentication")
        verified_token = self._tokens.verify_token(token)
        requested_audiences = _string_list_field(spec, "audiences") or (ISSUER,)
        external_tokens = self._find_external_tokens()
        if verified_token is None and external_tokens is not None and ISSUER in requested_audiences:
            return _review_external_token(external_tokens, token, request.client_address)
        audiences = (
            [] if verified_token is None else [each for each in requested_audiences if each in verified_token.audiences]
        )
        if verified_token is None or not audiences:
            return _INVALID_TOKEN_STATUS
        return _authenticated_status(verified_token.user, audiences)

    def _self_subject_review(self, request: ApiRequest, _spec: Mapping[str, Any], _namespace: str) -> Mapping[str, Any]:
        return {"userInfo": request.user.to_json()}

    def _decide_access(self, kind: str, user: UserInfo, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        resource_attributes = _object_field(spec, "resourceAttributes")
        path_attributes = _object_field(spec, "nonResourceAttributes")
        is_path_review = spec.get("nonResourceAttributes") is not None
        if (spec.get("resourceAttributes") is not None) == is_path_review:
            message = (
                "cannot be specified in combination with resourceAttributes"
                if is_path_review
                else "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            )
            field = "spec.nonResourceAttributes" if is_path_review else "spec.resourceAttributes"
            raise _invalid_review_error(kind, rules.invalid(field, path_attributes, message, _ATTRIBUTES_REMEDY))
        if is_path_review:
            verb, url_path = (_string_field(path_attributes, field) for field in ("verb", "path"))
            attributes = RequestAttributes(user, verb, path=url_path)
        else:
            field_names = ("verb", "group", "resource", "subresource", "namespace", "name")
            attributes = RequestAttributes(user, *(_string_field(resource_attributes, field) for field in field_names))
        is_allowed, reason = self._rbac.decide(attributes)
        return {"allowed": is_allowed, "reason": reason} if reason else {"allowed": is_allowed}


def _review_external_token(
    external_tokens: ExternalTokens, token: str, client_address: str
) -> Mapping[str, Any] | LaterStatus:
    """Return the status of a review of another issuer's token. Raises StatusError if too many requests wait."""
    user = external_tokens.find_user(token)
    if user is not PENDING_USER:
        return _external_status(user)
    callbacks: list[Callable[[Mapping[str, Any]], None]] = []
    external_tokens.finish(token, client_address, lambda outcome: callbacks[0](_external_status(outcome)))
    return callbacks.append


def _external_status(user: UserInfo | None) -> Mapping[str, Any]:
    return _INVALID_TOKEN_STATUS if user is None else _authenticated_status(user, [ISSUER])


def _authenticated_status(user: UserInfo, audiences: Sequence[str]) -> Mapping[str, Any]:
    return {"authenticated": True, "user": user.to_json(), "audiences": list(audiences)}


def _review_resource(group: str, kind: str, review_handler: ReviewHandler, *, namespaced: bool = False) -> Resource:
    def create(request: ApiRequest, namespace: str, name: str) -> Response | DeferredResponse:
        if name:
            raise method_not_allowed_error()
        body = read_body(request).value
        if not isinstance(body, Mapping):
            raise bad_request("the request body is not an object")
        check_kind(body, f"{group}/{_VERSION}", kind)
        metadata = _object_field(body, "metadata")
        if group == AUTHORIZATION and kind.endswith("AccessReview"):
            _check_metadata(kind, metadata, is_namespaced=namespaced)
        status = review_handler(request, _object_field(body, "spec"), namespace)
        result = {"kind": kind, "apiVersion": f"{group}/{_VERSION}", "metadata": metadata, "spec": body.get("spec", {})}
        if callable(status):
            later_status = status
            return DeferredResponse(
                lambda respond: later_status(lambda final: respond(Response(201, {**result, "status": final})))
            )
        return Response(201, {**result, "status": status})

    singular = kind.lower()
    review_info = virtual_kind(group, _VERSION, kind, f"{singular}s", singular, namespaced=namespaced)
    return virtual_resource(review_info, {"": EndpointHandlers(group, _VERSION, kind, {"POST": create})})


def _check_metadata(kind: str, metadata: Mapping[str, Any], *, is_namespaced: bool) -> None:
    ignored_fields = ("managedFields", "namespace") if is_namespaced else ("managedFields",)
    forbidden_fields = {field: value for field, value in metadata.items() if value and field not in ignored_fields}
    if forbidden_fields:
        problem_text = "must be empty except for namespace" if is_namespaced else "must be empty"
        raise _invalid_review_error(
            kind, rules.invalid("metadata", forbidden_fields, problem_text, "leave the field out")
        )


def check_kind(body: Mapping[str, Any], api_version: str, kind: str) -> None:
    """Raise StatusError if a request body names another kind or API version."""
    version_and_kind = (body.get("apiVersion") or api_version, body.get("kind") or kind)
    if version_and_kind != (api_version, kind):
        raise bad_request(f'{version_and_kind[1]} in version "{version_and_kind[0]}" cannot be handled as a {kind}')


def _reviewed_user(kind: str, spec: Mapping[str, Any]) -> UserInfo:
    user, groups, extra = _string_field(spec, "user"), _string_list_field(spec, "groups"), _object_field(spec, "extra")
    if not user and not groups:
        message = "at least one of user or group must be specified"
        raise _invalid_review_error(kind, rules.invalid("spec.user", user, message, "set spec.user or spec.groups"))
    return UserInfo(user, groups, _string_field(spec, "uid"), tuple((k, _string_list_field(extra, k)) for k in extra))


def _invalid_review_error(kind: str, fault: FieldError) -> StatusError:
    details = {"group": AUTHORIZATION, "kind": kind, "causes": causes_of((fault,))}
    return StatusError(422, "Invalid", f'{kind}.{AUTHORIZATION} "" is invalid: {fault}', details)


def _object_field(parent: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = parent.get(field)
    if value is not None and not isinstance(value, Mapping):
        raise bad_request(f"{field} must be an object")
    return value or {}


def _string_field(parent: Mapping[str, Any], field: str) -> str:
    value = parent.get(field)
    if value is not None and not isinstance(value, str):
        raise bad_request(f"{field} must be a string")
    return value or ""


def _string_list_field(parent: Mapping[str, Any], field: str) -> tuple[str, ...]:
    values = parent.get(field) or ()
    if not isinstance(values, list | tuple) or not all(isinstance(each, str) for each in values):
        raise bad_request(f"{field} must be a list of strings")
    return tuple(values)


#: Maximum token lifetime in seconds; longer requests are shortened to it, like --service-account-max-token-expiration.
TOKEN_LIFETIME_MAX: Final = 30 * 24 * 3600
_DEFAULT_LIFETIME_SECONDS: Final = 3600
_LIFETIME_SECONDS_MIN: Final = 600
_REQUESTED_SECONDS_MAX: Final = 1 << 32
_KIND: Final = "TokenRequest"
_GROUP: Final = "authentication.k8s.io"
_BINDABLE_KINDS: Final = {"Pod": (scheme.POD, "pods"), "Secret": (scheme.SECRET, "secrets")}


class TokenRequestHandler:
    """The handler of requests for ServiceAccount tokens: `serviceaccounts/NAME/token`."""

    def __init__(self, objects: ObjectReader, tokens: TokenIssuer) -> None:
        self._objects = objects
        self._tokens = tokens

    def handlers(self) -> EndpointHandlers:
        """Return the handlers of the subresource `token`."""
        return EndpointHandlers(_GROUP, "v1", _KIND, {"POST": self._create})

    def _create(self, request: ApiRequest, namespace: str, name: str) -> Response:
        body_object = read_body(request).value
        body_object = body_object if isinstance(body_object, Mapping) else {}
        check_kind(body_object, f"{_GROUP}/v1", _KIND)
        _check_account_names(body_object.get("metadata") or {}, namespace, name)
        spec = body_object.get("spec")
        if not isinstance(spec, Mapping | None):
            raise bad_request("spec must be an object")
        spec = spec or {}
        lifetime, audiences = _requested_lifetime(spec), _requested_audiences(spec)
        account = self._get_existing(Key(scheme.SERVICE_ACCOUNT, namespace, name), "serviceaccounts")
        bound_object = self._find_bound_object(spec.get("boundObjectRef"), namespace, name)
        expires_at = self._tokens.clock() + min(lifetime, TOKEN_LIFETIME_MAX) * SECOND
        token = self._tokens.issue_account_token(account, bound_object, audiences, expires_at)
        expiration_time = format_time(expires_at // SECOND * SECOND)
        new_spec = {**spec, "audiences": list(audiences), "expirationSeconds": min(lifetime, TOKEN_LIFETIME_MAX)}
        status = {"token": token, "expirationTimestamp": expiration_time}
        metadata = {"name": name, "namespace": namespace}
        body = {"kind": _KIND, "apiVersion": f"{_GROUP}/v1", "metadata": metadata, "spec": new_spec, "status": status}
        return Response(201, body)

    def _find_bound_object(self, reference: Any, namespace: str, account: str) -> Obj | None:
        if reference is None:
            return None
        kind = reference.get("kind") if isinstance(reference, Mapping) else None
        if not isinstance(kind, str) or kind not in _BINDABLE_KINDS or reference.get("apiVersion", "v1") != "v1":
            raise bad_request(f"cannot bind token to object of type {kind}")
        bound_object = self._get_existing(
            Key(_BINDABLE_KINDS[kind][0], namespace, str(reference.get("name", ""))), _BINDABLE_KINDS[kind][1]
        )
        pod_account = (bound_object.get("spec") or {}).get("serviceAccountName") or "default"
        if kind == "Pod" and pod_account != account:
            message = (
                f'cannot bind token for serviceaccount "{account}" to pod running with serviceaccount "{pod_account}"'
            )
            raise bad_request(message)
        required_uid, uid = reference.get("uid"), bound_object["metadata"]["uid"]
        if required_uid and required_uid != uid:
            uid_mismatch = f"the UID in the bound object reference ({required_uid}) does not match the UID in record"
            message = f'Operation cannot be fulfilled on {kind} "{bound_object["metadata"]["name"]}": {uid_mismatch}'
            raise StatusError(409, "Conflict", message)
        return bound_object

    def _get_existing(self, key: Key, plural: str) -> Obj:
        obj = self._objects.get(key)
        if obj is None:
            raise StatusError(404, "NotFound", f'{plural} "{key.name}" not found', {"name": key.name, "kind": plural})
        return obj


def _check_account_names(metadata: Any, namespace: str, name: str) -> None:
    if not isinstance(metadata, Mapping):
        raise bad_request("metadata must be an object")
    for field, expected in (("name", name), ("namespace", namespace)):
        value = metadata.get(field)
        if value and value != expected:
            message = f"must match the service account {field} if specified"
            raise _invalid_token_request_error(
                rules.invalid(f"metadata.{field}", value, message, "leave the field out"), name
            )


def _requested_lifetime(spec: Mapping[str, Any]) -> int:
    lifetime = spec.get("expirationSeconds", _DEFAULT_LIFETIME_SECONDS)
    path, remedy = "spec.expirationSeconds", "request 10 minutes or more"
    if not isinstance(lifetime, int) or isinstance(lifetime, bool):
        raise bad_request(f"{path} must be an integer")
    if not _LIFETIME_SECONDS_MIN <= lifetime <= _REQUESTED_SECONDS_MAX:
        limit_text = "less than 10 minutes" if lifetime < _LIFETIME_SECONDS_MIN else "larger than 2^32 seconds"
        raise _invalid_token_request_error(
            rules.invalid(path, lifetime, f"may not specify a duration {limit_text}", remedy)
        )
    return lifetime


def _requested_audiences(spec: Mapping[str, Any]) -> tuple[str, ...]:
    audiences = spec.get("audiences") or (ISSUER,)
    if not isinstance(audiences, list | tuple) or not all(isinstance(each, str) for each in audiences):
        raise bad_request("spec.audiences must be a list of strings")
    return tuple(audiences)


def _invalid_token_request_error(fault: FieldError, name: str = "") -> StatusError:
    name_detail = {"name": name} if name else {}
    details = {**name_detail, "group": _GROUP, "kind": _KIND, "causes": causes_of((fault,))}
    return StatusError(422, "Invalid", f'{_KIND}.{_GROUP} "{name}" is invalid: {fault}', details)
