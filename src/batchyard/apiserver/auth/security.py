"""The security of a server: filters, RBAC index, guards of roles, review and token resources."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj
from batchyard.api.times import format_time
from batchyard.api.validation import rules
from batchyard.apiserver.auth.authorization import (
    GROUP,
    Attributes,
    Authorizer,
    Decision,
    RbacAuthorizer,
    RbacRule,
    attributes_of,
    forbidden,
    refused_resource,
    role_key,
    rules_of,
    uncovered,
)
from batchyard.apiserver.auth.tokens import ISSUER, Tokens
from batchyard.apiserver.dashboard import MODELS
from batchyard.apiserver.request import (
    ANONYMOUS,
    AUTHENTICATED,
    MASTERS,
    SEPARATOR,
    UNAUTHENTICATED,
    ApiRequest,
    Response,
    StatusError,
    UserInfo,
    account_groups,
    account_of,
    bad_request,
    causes_of,
    method_not_allowed,
)
from batchyard.apiserver.resources import EndpointHandlers, Resource, ResourcePath, WriteGuard, part_at, with_answers
from batchyard.apiserver.serialization import read_body
from batchyard.apiserver.virtual_resources import unstored, unstored_kind
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import ObjectReader

# --- reviews ---
#
# Review resources: a create request asks a question, and the status of the reply answers it. Reviews are not stored.
#
# Authorization: SubjectAccessReview, its local and self variants, SelfSubjectRulesReview. Authentication: TokenReview,
# SelfSubjectReview. Sources: Kubernetes's pkg/registry/{authorization,authentication},
# pkg/apis/authorization/validation.


AUTHORIZATION: Final = "authorization.k8s.io"
AUTHENTICATION: Final = "authentication.k8s.io"
_VERSION: Final = "v1"
_REMEDY: Final = "set the attributes of the request"

Review: TypeAlias = Callable[[ApiRequest, Mapping[str, Any], str], Mapping[str, Any]]
"""Returns the status of a review, from the request, the spec and the namespace of the path."""


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


# --- token requests ---
#
# `serviceaccounts/NAME/token`: a token for a ServiceAccount, with a limited lifetime.
#
# Source: Kubernetes's pkg/registry/core/serviceaccount/storage/token.go and pkg/apis/authentication/validation.


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


# --- filters ---
#
# Request filters: authentication, impersonation, authorization.
#
# Source of the order: k8s.io/apiserver, pkg/server/config.go.


# --- impersonation ---
#
# The Impersonate-* headers make a request act as another user.
#
# Source: k8s.io/apiserver, pkg/endpoints/filters/impersonation.go.


_AUTHENTICATION: Final = "authentication.k8s.io"
_PREFIX: Final = "impersonate-"
_USER: Final = "impersonate-user"
_REVIEW_GROUP: Final = "impersonate-group"
_UID: Final = "impersonate-uid"
_EXTRA: Final = "impersonate-extra-"


def impersonated(request: ApiRequest) -> UserInfo | None:
    """Return the impersonated user; None without impersonation headers."""
    if _PREFIX not in "\n".join(request.headers):  # true for nearly all requests
        return None
    name = request.headers.get(_USER, "")
    given = [header for header in request.headers if header in {_REVIEW_GROUP, _UID} or header.startswith(_EXTRA)]
    if not name:
        if given:
            raise bad_request(f"requested {', '.join(given)} without impersonating a user")
        return None
    groups = tuple(group for group in request.headers.get(_REVIEW_GROUP, "").split(SEPARATOR) if group)
    account = account_of(name)
    if not groups and account is not None:
        groups = account_groups(account[0])
    known = UNAUTHENTICATED if name == ANONYMOUS.name else AUTHENTICATED
    if AUTHENTICATED not in groups and UNAUTHENTICATED not in groups:
        groups = (*groups, known)
    extra = tuple((key, tuple(values)) for key, values in _extra(request))
    return UserInfo(name, groups, request.headers.get(_UID, ""), extra)


def rights_needed(user: UserInfo, request: ApiRequest) -> Iterator[Attributes]:
    """Yield the permissions that impersonation requires: `impersonate` on each user, group, uid and extra value."""
    name = request.headers[_USER]
    account = account_of(name)
    if account is None:
        yield Attributes(user, "impersonate", "", "users", name=name)
    else:
        yield Attributes(user, "impersonate", "", "serviceaccounts", namespace=account[0], name=account[1])
    for group in request.headers.get(_REVIEW_GROUP, "").split(SEPARATOR):
        if group:
            yield Attributes(user, "impersonate", "", "groups", name=group)
    if uid := request.headers.get(_UID, ""):
        yield Attributes(user, "impersonate", _AUTHENTICATION, "uids", name=uid)
    for key, values in _extra(request):
        for value in values:
            yield Attributes(user, "impersonate", _AUTHENTICATION, "userextras", key, name=value)


def _extra(request: ApiRequest) -> Iterator[tuple[str, list[str]]]:
    for header, value in request.headers.items():
        if header.startswith(_EXTRA):
            yield unquote(header.removeprefix(_EXTRA)), value.split(SEPARATOR)


HEALTH: Final = ("healthz", "livez", "readyz")
#: Path roots that need no authentication.
_OPEN: Final = (*HEALTH, "version", "ui")
_SCHEME: Final = "bearer"
#: Subresources that the dashboard reads beside its models.
_PAGE_SUBRESOURCES: Final = ("why", "eta")


class AuthFilters:
    """The filters of a request: authentication, impersonation, authorization."""

    def __init__(self, authorizer: Authorizer, tokens: Tokens) -> None:
        self._authorizer = authorizer
        self._tokens = tokens

    def authenticated(self, request: ApiRequest) -> ApiRequest:
        """Return the request with the user of its certificate or token. Raises Refused on invalid credentials."""
        if request.user != ANONYMOUS:
            return request
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == _SCHEME and token.strip():
            user = self._tokens.user_of(token.strip())
            if user is None and permits_page_token(request):
                user = self._tokens.page_user_of(token.strip())
            if user is None:
                raise unauthorized()
            return request.made_by(user)
        if not _is_open(request):
            raise unauthorized()
        return request

    def acting(self, request: ApiRequest) -> ApiRequest:
        """Return the request with the impersonated user, if any. Raises Refused if its own user may not impersonate."""
        user = impersonated(request)
        if user is None:
            return request
        for attributes in rights_needed(request.user, request):
            decision = self._authorizer.decide(attributes)
            if not decision.allowed:
                raise forbidden(attributes, decision.reason)
        return request.made_by(user)

    def check(self, request: ApiRequest, path: ResourcePath | None, verb: str = "") -> None:
        """Raise Refused unless the user may perform the request, or the given verb in its place."""
        if path is None and _is_open(request):
            return
        attributes = attributes_of(request, path)
        if verb:
            attributes = attributes._replace(verb=verb)
        decision = self._authorizer.decide(attributes)
        if not decision.allowed:
            raise forbidden(attributes, decision.reason)


def unauthorized() -> StatusError:
    """Return the 401 error of a request without valid credentials."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def permits_page_token(request: ApiRequest) -> bool:
    """Report whether a page token permits a request: it permits reads of models and of `why` and `eta`."""
    if request.method != "GET" or "upgrade" in request.headers:
        return False
    return request.path.startswith(MODELS) or part_at(request.path) in _PAGE_SUBRESOURCES


def _is_open(request: ApiRequest) -> bool:
    return request.path.strip("/").split("/")[0] in _OPEN


# --- escalation ---
#
# Privilege escalation prevention: users can grant only permissions that they hold.
#
# Sources: Kubernetes's pkg/registry/rbac/{role,clusterrole,rolebinding,clusterrolebinding}/policybased.


_RESOURCES: Final = {
    scheme.ROLE: "roles",
    scheme.CLUSTER_ROLE: "clusterroles",
    scheme.ROLE_BINDING: "rolebindings",
    scheme.CLUSTER_ROLE_BINDING: "clusterrolebindings",
}


class Escalation:
    """The escalation checks for writes of roles and bindings."""

    def __init__(self, rbac: RbacAuthorizer) -> None:
        self._rbac = rbac

    def guards(self) -> Mapping[str, WriteGuard]:
        """Return the guards by kind of role or binding."""
        roles, bindings = (scheme.ROLE, scheme.CLUSTER_ROLE), (scheme.ROLE_BINDING, scheme.CLUSTER_ROLE_BINDING)
        return dict.fromkeys(roles, self._check_role) | dict.fromkeys(bindings, self._check_binding)

    def _check_role(self, user: UserInfo, new: Obj, old: Obj | None) -> None:
        """Reject a role with rules that its writer does not hold, unless the user may `escalate`.

        Unchanged rules are checked too, because a new label can aggregate them into other roles. A role with an
        aggregation rule requires all permissions, since it can gather any rule.
        """
        if _changes_only_lifecycle(new, old):
            return
        resource, metadata = _RESOURCES[f"{new['kind']}.{GROUP}"], new["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata.get("name", "")
        if self._may(user, "escalate", resource, namespace, name):
            return
        wanted = rules_of(new)
        if new.get("aggregationRule") or (old or {}).get("aggregationRule"):
            wanted = (*wanted, RbacRule(("*",), ("*",), ("*",)), RbacRule(("*",), urls=("*",)))
        self._check_held(user, new, wanted)

    def _check_binding(self, user: UserInfo, new: Obj, old: Obj | None) -> None:
        """Reject a binding to a role with rules that its writer does not hold, unless the user may `bind` the role."""
        if _changes_only_lifecycle(new, old):
            return
        role, namespace = role_key(new), new["metadata"].get("namespace", "")
        resource = _RESOURCES[role.kind]
        if self._may(user, "bind", resource, namespace, role.name):
            return
        rules = self._rbac.rules_of(role)
        if rules is None:
            details = {"name": role.name, "group": GROUP, "kind": resource}
            raise StatusError(404, "NotFound", f'{resource}.{GROUP} "{role.name}" not found', details)
        self._check_held(user, new, rules)

    def _may(self, user: UserInfo, verb: str, resource: str, namespace: str, name: str) -> bool:
        if MASTERS in user.groups:
            return True
        return self._rbac.decide(Attributes(user, verb, GROUP, resource, "", namespace, name)).allowed

    def _check_held(self, user: UserInfo, new: Obj, wanted: Sequence[RbacRule]) -> None:
        metadata = new["metadata"]
        missing = uncovered(wanted, self._rbac.rules_for(user, metadata.get("namespace", "")))
        if not missing:
            return
        groups = " ".join(map(json.dumps, user.groups))
        message = f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:'
        why = "\n".join([message, *sorted(map(str, missing))])
        raise refused_resource(GROUP, _RESOURCES[f"{new['kind']}.{GROUP}"], metadata.get("name", ""), why)


def _changes_only_lifecycle(new: Obj, old: Obj | None) -> bool:
    """Report whether a change affects only owner references and finalizers, which grant no permission."""
    return old is not None and _without_ends(new) == _without_ends(old)


def _without_ends(obj: Obj) -> Obj:
    left_out = ("ownerReferences", "finalizers", "managedFields", "resourceVersion")
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name not in left_out}}


# --- owner pods ---
#
# Only the owner of a platform may start pods on a machine that cannot isolate pods from itself.
#
# Every pod comes from an object that a request writes: the pod itself, or its Job, CronJob or JobSet. The authorizer
# therefore denies those writes to other users, and also commands in the owner's containers.


_WRITES: Final = frozenset({"create", "update", "patch"})
_KINDS: Final = frozenset({("", "pods"), ("batch", "jobs"), ("batch", "cronjobs"), ("jobset.x-k8s.io", "jobsets")})
_COMMANDS: Final = frozenset({"exec", "attach"})


class OwnerPods:
    """An authorizer that denies requests that start processes to users other than the owner.

    It delegates all other requests.
    """

    def __init__(self, authorizer: Authorizer, denial: Callable[[], str]) -> None:
        """`denial` returns why the machine cannot isolate pods; '' if it can."""
        self._authorizer = authorizer
        self._denial = denial

    def decide(self, attributes: Attributes) -> Decision:
        """Decide whether a request is allowed, with the reason of a denial."""
        if MASTERS not in attributes.user.groups and _starts_processes(attributes):
            reason = self._denial()
            if reason:
                return Decision(False, reason)
        return self._authorizer.decide(attributes)


def _starts_processes(attributes: Attributes) -> bool:
    kind = (attributes.group, attributes.resource)
    if kind == ("", "pods") and attributes.subresource in _COMMANDS:
        return True
    return kind in _KINDS and not attributes.subresource and attributes.verb in _WRITES


class Security(NamedTuple):
    """The filters of a server, the RBAC index that must observe every change, and all resources."""

    access: AuthFilters
    rbac: RbacAuthorizer
    resources: Sequence[Resource]


def _no_denial() -> str:
    return ""


def security_of(
    objects: ObjectReader, resources: Sequence[Resource], tokens: Tokens, pods_denial: Callable[[], str] = _no_denial
) -> Security:
    """Return the filters of a server, and its resources with guards, tokens and reviews added.

    `pods_denial` returns why only the owner may start pods; '' if other users may too.
    """
    rbac = RbacAuthorizer(objects)
    guards = Escalation(rbac).guards()
    served = [resource._replace(guard=guards.get(resource.info.constant)) for resource in resources]
    served = with_answers(served, scheme.SERVICE_ACCOUNT, {"token": TokenRequests(objects, tokens).answer()})
    return Security(
        AuthFilters(OwnerPods(rbac, pods_denial), tokens), rbac, [*served, *Reviews(rbac, tokens).resources()]
    )
