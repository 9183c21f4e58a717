"""Review resources: a create request asks a question, and the status of the reply answers it. Reviews are not stored.

Authorization: SubjectAccessReview, its local and self variants, SelfSubjectRulesReview. Authentication: TokenReview,
SelfSubjectReview. Sources: Kubernetes's pkg/registry/{authorization,authentication}, pkg/apis/authorization/validation.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj
from batchyard.api.times import format_time
from batchyard.api.validation import rules
from batchyard.apiserver.auth.authorization import (
    Attributes,
    RbacAuthorizer,
)
from batchyard.apiserver.auth.tokens import ISSUER, Tokens
from batchyard.apiserver.request import (
    ApiRequest,
    Response,
    StatusError,
    UserInfo,
    bad_request,
    causes_of,
    method_not_allowed,
)
from batchyard.apiserver.resources import EndpointHandlers, Resource
from batchyard.apiserver.serialization import read_body
from batchyard.apiserver.virtual_resources import unstored, unstored_kind
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import ObjectReader

AUTHORIZATION: Final = "authorization.k8s.io"
AUTHENTICATION: Final = "authentication.k8s.io"
_VERSION: Final = "v1"
_REMEDY: Final = "set the attributes of the request"

Review: TypeAlias = Callable[[ApiRequest, Mapping[str, Any], str], Mapping[str, Any]]


class Reviews:
    """The review resources, answered from RBAC and the token verifier."""

    def __init__(self, rbac: RbacAuthorizer, tokens: Tokens) -> None:
        self._rbac = rbac
        self._tokens = tokens

    def resources(self) -> list[Resource]:
        """Return the review kinds as create-only resources."""
        return [
            _resource(AUTHORIZATION, "SelfSubjectAccessReview", self._own_access),
            _resource(AUTHORIZATION, "SubjectAccessReview", self._access),
            _resource(AUTHORIZATION, "LocalSubjectAccessReview", self._local_access, namespaced=True),
            _resource(AUTHORIZATION, "SelfSubjectRulesReview", self._own_rules),
            _resource(AUTHENTICATION, "TokenReview", self._token),
            _resource(AUTHENTICATION, "SelfSubjectReview", self._own_user),
        ]

    def _own_access(self, request: ApiRequest, spec: Mapping[str, Any], _namespace: str) -> Mapping[str, Any]:
        return self._decided("SelfSubjectAccessReview", request.user, spec)

    def _access(self, _request: ApiRequest, spec: Mapping[str, Any], _namespace: str) -> Mapping[str, Any]:
        return self._decided("SubjectAccessReview", _user_in("SubjectAccessReview", spec), spec)

    def _local_access(self, _request: ApiRequest, spec: Mapping[str, Any], namespace: str) -> Mapping[str, Any]:
        """Answer like `_access`, limited to the namespace of the path."""
        kind = "LocalSubjectAccessReview"
        user = _user_in(kind, spec)
        if spec.get("nonResourceAttributes"):
            message = "disallowed on this kind of request"
            raise _refused(kind, rules.invalid("spec.nonResourceAttributes", {}, message, _REMEDY))
        asked = _text(_object(spec, "resourceAttributes"), "namespace")
        if asked != namespace:
            message = f"must match metadata.namespace: {namespace}"
            raise _refused(kind, rules.invalid("spec.resourceAttributes.namespace", asked, message, "leave it out"))
        return self._decided(kind, user, spec)

    def _own_rules(self, request: ApiRequest, spec: Mapping[str, Any], _namespace: str) -> Mapping[str, Any]:
        namespace = _text(spec, "namespace")
        if not namespace:
            raise bad_request("no namespace on request")
        reported = [rule.reported() for rule in self._rbac.rules_for(request.user, namespace)]
        return {
            "resourceRules": [rule for rule in reported if "resources" in rule],
            "nonResourceRules": [rule for rule in reported if "nonResourceURLs" in rule],
            "incomplete": False,
        }

    def _token(self, _request: ApiRequest, spec: Mapping[str, Any], _namespace: str) -> Mapping[str, Any]:
        token = _text(spec, "token")
        if not token:
            raise bad_request("token is required for TokenReview in authentication")
        verified = self._tokens.verified(token)
        wanted = _texts(spec, "audiences") or (ISSUER,)
        audiences = [] if verified is None else [each for each in wanted if each in verified.audiences]
        if verified is None or not audiences:
            return {"error": "the token is invalid or has none of the requested audiences"}
        return {"authenticated": True, "user": verified.user.reported(), "audiences": audiences}

    def _own_user(self, request: ApiRequest, _spec: Mapping[str, Any], _namespace: str) -> Mapping[str, Any]:
        return {"userInfo": request.user.reported()}

    def _decided(self, kind: str, user: UserInfo, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """Decide whether a user may perform what a spec describes."""
        of_resource, of_path = _object(spec, "resourceAttributes"), _object(spec, "nonResourceAttributes")
        is_of_path = spec.get("nonResourceAttributes") is not None
        if (spec.get("resourceAttributes") is not None) == is_of_path:
            message = (
                "cannot be specified in combination with resourceAttributes"
                if is_of_path
                else "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            )
            field = "spec.nonResourceAttributes" if is_of_path else "spec.resourceAttributes"
            raise _refused(kind, rules.invalid(field, of_path, message, _REMEDY))
        if is_of_path:
            asked = Attributes(user, _text(of_path, "verb"), path=_text(of_path, "path"))
        else:
            fields = ("verb", "group", "resource", "subresource", "namespace", "name")
            asked = Attributes(user, *(_text(of_resource, field) for field in fields))
        allowed, reason = self._rbac.decide(asked)
        return {"allowed": allowed, "reason": reason} if reason else {"allowed": allowed}


def _resource(group: str, kind: str, review: Review, *, namespaced: bool = False) -> Resource:
    """Return a resource without objects, whose create request is answered by a review."""

    def create(request: ApiRequest, namespace: str, name: str) -> Response:
        if name:
            raise method_not_allowed()
        sent = read_body(request).value
        if not isinstance(sent, Mapping):
            raise bad_request("the request body is not an object")
        check_kind(sent, f"{group}/{_VERSION}", kind)
        metadata = _object(sent, "metadata")
        if group == AUTHORIZATION and kind.endswith("AccessReview"):
            _check_unnamed(kind, metadata, is_placed=namespaced)
        status = review(request, _object(sent, "spec"), namespace)
        reported = {
            "kind": kind,
            "apiVersion": f"{group}/{_VERSION}",
            "metadata": metadata,
            "spec": sent.get("spec", {}),
        }
        return Response(201, {**reported, "status": status})

    singular = kind.lower()
    info = unstored_kind(group, _VERSION, kind, f"{singular}s", singular, namespaced=namespaced)
    return unstored(info, {"": EndpointHandlers(group, _VERSION, kind, {"POST": create})})


def _check_unnamed(kind: str, metadata: Mapping[str, Any], *, is_placed: bool) -> None:
    """Raise Refused if an access review has metadata other than the allowed fields."""
    ignored = ("managedFields", "namespace") if is_placed else ("managedFields",)
    stated = {field: value for field, value in metadata.items() if value and field not in ignored}
    if stated:
        message = "must be empty except for namespace" if is_placed else "must be empty"
        raise _refused(kind, rules.invalid("metadata", stated, message, "leave it out"))


def check_kind(sent: Mapping[str, Any], api_version: str, kind: str) -> None:
    """Raise Refused if the body has another kind or API version."""
    found = (sent.get("apiVersion") or api_version, sent.get("kind") or kind)
    if found != (api_version, kind):
        raise bad_request(f'{found[1]} in version "{found[0]}" cannot be handled as a {kind}')


def _user_in(kind: str, spec: Mapping[str, Any]) -> UserInfo:
    """Return the user that a spec names."""
    user, groups, extra = _text(spec, "user"), _texts(spec, "groups"), _object(spec, "extra")
    if not user and not groups:
        message = "at least one of user or group must be specified"
        raise _refused(kind, rules.invalid("spec.user", user, message, "name one"))
    return UserInfo(user, groups, _text(spec, "uid"), tuple((key, _texts(extra, key)) for key in extra))


def _refused(kind: str, fault: FieldError) -> StatusError:
    details = {"group": AUTHORIZATION, "kind": kind, "causes": causes_of((fault,))}
    return StatusError(422, "Invalid", f'{kind}.{AUTHORIZATION} "" is invalid: {fault}', details)


def _object(of: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return an object field; empty if absent."""
    found = of.get(field)
    if found is not None and not isinstance(found, Mapping):
        raise bad_request(f"{field} must be an object")
    return found or {}


def _text(of: Mapping[str, Any], field: str) -> str:
    """Return a string field; empty if absent."""
    found = of.get(field)
    if found is not None and not isinstance(found, str):
        raise bad_request(f"{field} must be a string")
    return found or ""


def _texts(of: Mapping[str, Any], field: str) -> tuple[str, ...]:
    """Return a field with a list of strings; empty if absent."""
    found = of.get(field) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise bad_request(f"{field} must be a list of strings")
    return tuple(found)


#: Maximum lifetime in seconds; longer requests are shortened to it, like --service-account-max-token-expiration.
LIFE_MAX: Final = 30 * 24 * 3600
_LIFE: Final = 3600
_LIFE_MIN: Final = 600
_REQUESTED_SECONDS_MAX: Final = 1 << 32
_KIND: Final = "TokenRequest"
_GROUP: Final = "authentication.k8s.io"
_BOUND: Final = {"Pod": (scheme.POD, "pods"), "Secret": (scheme.SECRET, "secrets")}


class TokenRequests:
    """The handler of token requests."""

    def __init__(self, objects: ObjectReader, tokens: Tokens) -> None:
        self._objects = objects
        self._tokens = tokens

    def answer(self) -> EndpointHandlers:
        """Return the handlers of the subresource."""
        return EndpointHandlers(_GROUP, "v1", _KIND, {"POST": self._create})

    def _create(self, request: ApiRequest, namespace: str, name: str) -> Response:
        sent = read_body(request).value
        sent = sent if isinstance(sent, Mapping) else {}
        check_kind(sent, f"{_GROUP}/v1", _KIND)
        _check_place(sent.get("metadata") or {}, namespace, name)
        spec = sent.get("spec")
        if not isinstance(spec, Mapping | None):
            raise bad_request("spec must be an object")
        spec = spec or {}
        seconds, audiences = _seconds(spec), _audiences(spec)
        account = self._found(Key(scheme.SERVICE_ACCOUNT, namespace, name), "serviceaccounts")
        bound = self._bound(spec.get("boundObjectRef"), namespace, name)
        expires_at = self._tokens.clock() + min(seconds, LIFE_MAX) * SECOND
        token = self._tokens.issue(account, bound, audiences, expires_at)
        reported = format_time(expires_at // SECOND * SECOND)
        wanted = {**spec, "audiences": list(audiences), "expirationSeconds": min(seconds, LIFE_MAX)}
        status = {"token": token, "expirationTimestamp": reported}
        metadata = {"name": name, "namespace": namespace}
        body = {"kind": _KIND, "apiVersion": f"{_GROUP}/v1", "metadata": metadata, "spec": wanted, "status": status}
        return Response(201, body)

    def _bound(self, reference: Any, namespace: str, account: str) -> Obj | None:
        """Return the object that the token is bound to; None without a reference."""
        if reference is None:
            return None
        kind = reference.get("kind") if isinstance(reference, Mapping) else None
        if not isinstance(kind, str) or kind not in _BOUND or reference.get("apiVersion", "v1") != "v1":
            raise bad_request(f"cannot bind token to object of type {kind}")
        bound = self._found(Key(_BOUND[kind][0], namespace, str(reference.get("name", ""))), _BOUND[kind][1])
        of = (bound.get("spec") or {}).get("serviceAccountName") or "default"
        if kind == "Pod" and of != account:
            message = f'cannot bind token for serviceaccount "{account}" to pod running with serviceaccount "{of}"'
            raise bad_request(message)
        wanted, uid = reference.get("uid"), bound["metadata"]["uid"]
        if wanted and wanted != uid:
            why = f"the UID in the bound object reference ({wanted}) does not match the UID in record"
            message = f'Operation cannot be fulfilled on {kind} "{bound["metadata"]["name"]}": {why}'
            raise StatusError(409, "Conflict", message)
        return bound

    def _found(self, key: Key, resource: str) -> Obj:
        found = self._objects.get(key)
        if found is None:
            raise StatusError(
                404, "NotFound", f'{resource} "{key.name}" not found', {"name": key.name, "kind": resource}
            )
        return found


def _check_place(metadata: Any, namespace: str, name: str) -> None:
    """Raise Refused if the body names another ServiceAccount than the path."""
    if not isinstance(metadata, Mapping):
        raise bad_request("metadata must be an object")
    for field, wanted in (("name", name), ("namespace", namespace)):
        given = metadata.get(field)
        if given and given != wanted:
            message = f"must match the service account {field} if specified"
            raise _token_requests_refused(rules.invalid(f"metadata.{field}", given, message, "leave it out"), name)


def _seconds(spec: Mapping[str, Any]) -> int:
    """Return the requested lifetime of a token in seconds."""
    asked = spec.get("expirationSeconds", _LIFE)
    path, remedy = "spec.expirationSeconds", "request 10 minutes or more"
    if not isinstance(asked, int) or isinstance(asked, bool):
        raise bad_request(f"{path} must be an integer")
    if asked < _LIFE_MIN:
        raise _token_requests_refused(
            rules.invalid(path, asked, "may not specify a duration less than 10 minutes", remedy)
        )
    if asked > _REQUESTED_SECONDS_MAX:
        raise _token_requests_refused(
            rules.invalid(path, asked, "may not specify a duration larger than 2^32 seconds", remedy)
        )
    return asked


def _audiences(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the requested audiences of a token; the platform's own by default."""
    found = spec.get("audiences") or (ISSUER,)
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise bad_request("spec.audiences must be a list of strings")
    return tuple(found)


def _token_requests_refused(fault: FieldError, name: str = "") -> StatusError:
    named = {"name": name} if name else {}
    details = {**named, "group": _GROUP, "kind": _KIND, "causes": causes_of((fault,))}
    return StatusError(422, "Invalid", f'{_KIND}.{_GROUP} "{name}" is invalid: {fault}', details)
