"""The security of a server: authentication, impersonation, authorization, and guards against escalation."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver import request as api_request
from batchyard.apiserver.auth import authorization
from batchyard.apiserver.auth.reviews import AccessReviews, TokenRequestHandler
from batchyard.apiserver.auth.tokens import ExternalTokens, TokenIssuer
from batchyard.apiserver.dashboard import DASHBOARD_ACTIONS_PATH, DASHBOARD_MODELS_PATH
from batchyard.apiserver.resources import (
    Resource,
    ResourcePath,
    WriteGuard,
    subresource_in_path,
    with_subresource_handlers,
)
from batchyard.controller_groups import JOB_CONTROLLERS
from batchyard.interfaces.client import ObjectReader

# Request filters: authentication, impersonation (the Impersonate-* headers make a request act as another user),
# authorization.
#
# Source of the order: k8s.io/apiserver, pkg/server/config.go and pkg/endpoints/filters/impersonation.go.


_AUTHENTICATION: Final = "authentication.k8s.io"
_IMPERSONATE_PREFIX: Final = "impersonate-"
_IMPERSONATE_USER: Final = "impersonate-user"
_IMPERSONATE_GROUP: Final = "impersonate-group"
_IMPERSONATE_UID: Final = "impersonate-uid"
_IMPERSONATE_EXTRA_PREFIX: Final = "impersonate-extra-"


def impersonated_user(request: api_request.ApiRequest) -> api_request.UserInfo | None:
    """Return the user that a request impersonates; None without impersonation headers.

    Raises StatusError if other impersonation headers are set without a user.
    """
    if _IMPERSONATE_PREFIX not in "\n".join(request.headers):  # true for nearly all requests
        return None
    name = request.headers.get(_IMPERSONATE_USER, "")
    detail_headers = [
        header
        for header in request.headers
        if header in {_IMPERSONATE_GROUP, _IMPERSONATE_UID} or header.startswith(_IMPERSONATE_EXTRA_PREFIX)
    ]
    if not name:
        if detail_headers:
            raise api_request.bad_request(f"requested {', '.join(detail_headers)} without impersonating a user")
        return None
    groups = tuple(
        group for group in request.headers.get(_IMPERSONATE_GROUP, "").split(api_request.HEADER_SEPARATOR) if group
    )
    account = api_request.service_account_of(name)
    if not groups and account is not None:
        groups = api_request.account_groups(account[0])
    implied_group = (
        api_request.UNAUTHENTICATED_GROUP if name == api_request.ANONYMOUS.name else api_request.AUTHENTICATED_GROUP
    )
    if api_request.AUTHENTICATED_GROUP not in groups and api_request.UNAUTHENTICATED_GROUP not in groups:
        groups = (*groups, implied_group)
    extra = tuple((key, tuple(values)) for key, values in _extra_headers(request))
    return api_request.UserInfo(name, groups, request.headers.get(_IMPERSONATE_UID, ""), extra)


def required_permissions(
    user: api_request.UserInfo, request: api_request.ApiRequest
) -> Iterator[authorization.RequestAttributes]:
    """Yield the permissions that impersonation requires: `impersonate` on the user, groups, uid and extra values."""
    name = request.headers[_IMPERSONATE_USER]
    account = api_request.service_account_of(name)
    if account is None:
        yield authorization.RequestAttributes(user, "impersonate", "", "users", name=name)
    else:
        yield authorization.RequestAttributes(
            user, "impersonate", "", "serviceaccounts", namespace=account[0], name=account[1]
        )
    for group in request.headers.get(_IMPERSONATE_GROUP, "").split(api_request.HEADER_SEPARATOR):
        if group:
            yield authorization.RequestAttributes(user, "impersonate", "", "groups", name=group)
    if uid := request.headers.get(_IMPERSONATE_UID, ""):
        yield authorization.RequestAttributes(user, "impersonate", _AUTHENTICATION, "uids", name=uid)
    for key, values in _extra_headers(request):
        for value in values:
            yield authorization.RequestAttributes(user, "impersonate", _AUTHENTICATION, "userextras", key, name=value)


def _extra_headers(request: api_request.ApiRequest) -> Iterator[tuple[str, list[str]]]:
    for header, value in request.headers.items():
        if header.startswith(_IMPERSONATE_EXTRA_PREFIX):
            yield unquote(header.removeprefix(_IMPERSONATE_EXTRA_PREFIX)), value.split(api_request.HEADER_SEPARATOR)


HEALTH_ENDPOINTS: Final = ("healthz", "livez", "readyz")
#: Path roots that need no authentication.
_PUBLIC_PATH_ROOTS: Final = (*HEALTH_ENDPOINTS, "version", "ui")
_BEARER_SCHEME: Final = "bearer"
#: Subresources that the dashboard reads beside the documents of its pages.
_UI_SUBRESOURCES: Final = ("why", "eta", "log")


class AuthFilters:
    """Authenticates requests, makes them act as impersonated users, and authorizes them."""

    def __init__(self, authorizer: authorization.Authorizer, tokens: TokenIssuer) -> None:
        self._authorizer = authorizer
        self._tokens = tokens
        #: Authenticates the tokens of other issuers; None if only the platform's own tokens are valid.
        self.external_tokens: ExternalTokens | None = None

    @property
    def authorizer(self) -> authorization.Authorizer:
        """The authorizer of all requests."""
        return self._authorizer

    def authenticate(self, request: api_request.ApiRequest) -> api_request.ApiRequest:
        """Return the request with the user of its certificate or token.

        The user is PENDING_USER if only `finish_authentication` can determine the user of the token.
        Raises StatusError if the token is invalid, or if the request has neither and its path is not public.
        """
        if request.user is api_request.PENDING_USER:
            raise unauthorized_error()
        if request.user != api_request.ANONYMOUS:
            return request
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == _BEARER_SCHEME and token.strip():
            user = self._tokens.user_of(token.strip())
            if user is None and permits_dashboard_token(request):
                user = self._dashboard_user(request, token.strip())
            if user is None and self.external_tokens is not None:
                user = self.external_tokens.find_user(token.strip())
            if user is None:
                raise unauthorized_error()
            return request.with_user(user)
        if not _is_public_path(request):
            raise unauthorized_error()
        return request

    def finish_authentication(
        self, request: api_request.ApiRequest, on_done: Callable[[api_request.ApiRequest | None], None]
    ) -> None:
        """Authenticate a request of PENDING_USER. `on_done` later gets it with its user, or None if that fails.

        Raises StatusError if too many requests wait.
        """
        token = request.headers.get("authorization", "").partition(" ")[2].strip()
        assert self.external_tokens is not None, "only tokens of other issuers are pending"
        self.external_tokens.finish(
            token, request.client_address, lambda user: on_done(None if user is None else request.with_user(user))
        )

    def _dashboard_user(self, request: api_request.ApiRequest, token: str) -> api_request.UserInfo | None:
        """Return the user of a dashboard token; None if it is no dashboard token.
        Raises StatusError (403) for a POST request with a read-only token. This is checked before impersonation,
        because impersonation replaces the user attribute that marks a token as read-only.
        """
        user = self._tokens.dashboard_user_of(token)
        if user is not None and request.method == "POST" and api_request.has_read_only_token(user):
            raise api_request.StatusError(
                403, "Forbidden", "this link is read-only: open the link that `batchyard page --actions` prints"
            )
        return user

    def impersonate(self, request: api_request.ApiRequest) -> api_request.ApiRequest:
        """Return the request with the impersonated user, if any. Raises StatusError if impersonation is not allowed."""
        user = impersonated_user(request)
        if user is None:
            return request
        for attributes in required_permissions(request.user, request):
            decision = self._authorizer.decide(attributes)
            if not decision.allowed:
                raise authorization.forbidden_error(attributes, decision.reason)
        return request.with_user(user)

    def authorize(self, request: api_request.ApiRequest, path: ResourcePath | None, verb: str = "") -> None:
        """Raise StatusError unless the user may perform the request; `verb` replaces the request's own verb."""
        if path is None and _is_public_path(request):
            return
        attributes = authorization.attributes_of(request, path)
        if verb:
            attributes = attributes._replace(verb=verb)
        self.authorize_attributes(attributes)

    def authorize_attributes(self, attributes: authorization.RequestAttributes) -> None:
        """Raise StatusError unless a request with these attributes is allowed."""
        decision = self._authorizer.decide(attributes)
        if not decision.allowed:
            raise authorization.forbidden_error(attributes, decision.reason)


def unauthorized_error() -> api_request.StatusError:
    """Return the 401 error of a request without valid credentials."""
    return api_request.StatusError(401, "Unauthorized", "Unauthorized")


def permits_dashboard_token(request: api_request.ApiRequest) -> bool:
    """Return whether a dashboard token may be used for a request.

    The token permits reading the documents of dashboard pages and the subresources `why`, `eta` and `log`, and sending
    actions.
    """
    if request.method == "POST":
        return request.path == DASHBOARD_ACTIONS_PATH
    if request.method != "GET" or "upgrade" in request.headers:
        return False
    return request.path.startswith(DASHBOARD_MODELS_PATH) or subresource_in_path(request.path) in _UI_SUBRESOURCES


def _is_public_path(request: api_request.ApiRequest) -> bool:
    return request.path.strip("/").split("/")[0] in _PUBLIC_PATH_ROOTS


# Privilege escalation prevention: users can grant only permissions that they hold.
#
# Sources: Kubernetes's pkg/registry/rbac/{role,clusterrole,rolebinding,clusterrolebinding}/policybased.


_RBAC_RESOURCES: Final = {
    scheme.ROLE: "roles",
    scheme.CLUSTER_ROLE: "clusterroles",
    scheme.ROLE_BINDING: "rolebindings",
    scheme.CLUSTER_ROLE_BINDING: "clusterrolebindings",
}


class EscalationGuard:
    """Prevents privilege escalation by writes of roles, admission policies and their bindings."""

    def __init__(self, rbac: authorization.RbacAuthorizer, objects: ObjectReader) -> None:
        self._rbac = rbac
        self._objects = objects

    def guards(self) -> Mapping[str, WriteGuard]:
        """Return the guards of roles, admission policies and their bindings, by kind; they reject escalating writes."""
        role_kinds, binding_kinds = (
            (scheme.ROLE, scheme.CLUSTER_ROLE),
            (scheme.ROLE_BINDING, scheme.CLUSTER_ROLE_BINDING),
        )
        policy_kinds = (scheme.VALIDATING_POLICY, scheme.MUTATING_POLICY)
        policy_binding_kinds = (scheme.VALIDATING_POLICY_BINDING, scheme.MUTATING_POLICY_BINDING)
        return {
            **dict.fromkeys(role_kinds, self._check_role),
            **dict.fromkeys(binding_kinds, self._check_binding),
            **dict.fromkeys(policy_kinds, self._check_policy),
            **dict.fromkeys(policy_binding_kinds, self._check_policy_binding),
        }

    # Messages of policies can show their parameters, so their authors must be allowed to read these.
    # Source: Kubernetes's pkg/registry/admissionregistration/*/authz.go.

    def _check_policy(self, user: api_request.UserInfo, new: Obj, old: Obj | None) -> None:
        param_kind = (new.get("spec") or {}).get("paramKind")
        if not param_kind or (old is not None and new["spec"] == old["spec"]):
            return
        if not self._may_get_params(user, param_kind, "*", "*"):
            kind_text = f"(kind={param_kind.get('kind', '')}, apiVersion={param_kind.get('apiVersion', '')})"
            reason = (
                f'user {user.name} must have "get" permission on all objects of the referenced paramKind {kind_text}'
            )
            raise _forbidden_policy_error(new, reason)

    def _check_policy_binding(self, user: api_request.UserInfo, new: Obj, old: Obj | None) -> None:
        spec = new.get("spec") or {}
        param_ref = spec.get("paramRef")
        if not param_ref or (old is not None and new["spec"] == old["spec"]):
            return
        is_mutating = new["kind"].startswith("Mutating")
        policy_kind = scheme.MUTATING_POLICY if is_mutating else scheme.VALIDATING_POLICY
        policy = self._objects.get(Key(policy_kind, "", spec.get("policyName", "")))
        param_kind = {} if policy is None else policy["spec"].get("paramKind") or {}
        namespace, name = param_ref.get("namespace") or "*", param_ref.get("name") or "*"
        if not self._may_get_params(user, param_kind, namespace, name):
            reason = f'user {user.name} does not have "get" permission on the object referenced by paramRef'
            raise _forbidden_policy_error(new, reason)

    def _may_get_params(
        self, user: api_request.UserInfo, param_kind: Mapping[str, str], namespace: str, name: str
    ) -> bool:
        """Return whether a user may get these objects; of a kind that is not built in, those of all resources."""
        if api_request.MASTERS_GROUP in user.groups:
            return True
        info = scheme.find_kind(param_kind.get("apiVersion", ""), param_kind.get("kind", ""))
        group, resource = ("*", "*") if info is None else (info.group, info.plural)
        attributes = authorization.RequestAttributes(user, "get", group, resource, "", namespace, name)
        return self._rbac.decide(attributes).allowed

    def _check_role(self, user: api_request.UserInfo, new: Obj, old: Obj | None) -> None:
        """Reject a role with rules that its writer does not hold, unless the user may `escalate`.

        Unchanged rules are checked too, because a new label can aggregate them into other roles. A role with an
        aggregation rule requires all permissions, since it can gather any rule.
        """
        if _changes_only_lifecycle_fields(new, old):
            return
        resource, metadata = _RBAC_RESOURCES[f"{new['kind']}.{authorization.GROUP}"], new["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata.get("name", "")
        if self._is_allowed(user, "escalate", resource, namespace, name):
            return
        required_rules = authorization.rules_of(new)
        if new.get("aggregationRule") or (old or {}).get("aggregationRule"):
            all_urls_rule = authorization.RbacRule(("*",), urls=("*",))
            required_rules = (*required_rules, authorization.RbacRule(("*",), ("*",), ("*",)), all_urls_rule)
        self._check_permissions_held(user, new, required_rules)

    def _check_binding(self, user: api_request.UserInfo, new: Obj, old: Obj | None) -> None:
        if _changes_only_lifecycle_fields(new, old):
            return
        role, namespace = authorization.role_key(new), new["metadata"].get("namespace", "")
        resource = _RBAC_RESOURCES[role.kind]
        if self._is_allowed(user, "bind", resource, namespace, role.name):
            return
        rules = self._rbac.rules_of(role)
        if rules is None:
            details = {"name": role.name, "group": authorization.GROUP, "kind": resource}
            raise api_request.StatusError(
                404, "NotFound", f'{resource}.{authorization.GROUP} "{role.name}" not found', details
            )
        self._check_permissions_held(user, new, rules)

    def _is_allowed(self, user: api_request.UserInfo, verb: str, resource: str, namespace: str, name: str) -> bool:
        if api_request.MASTERS_GROUP in user.groups:
            return True
        return self._rbac.decide(
            authorization.RequestAttributes(user, verb, authorization.GROUP, resource, "", namespace, name)
        ).allowed

    def _check_permissions_held(
        self, user: api_request.UserInfo, new: Obj, rules: Sequence[authorization.RbacRule]
    ) -> None:
        metadata = new["metadata"]
        missing_rules = authorization.missing_rules(rules, self._rbac.rules_for(user, metadata.get("namespace", "")))
        if not missing_rules:
            return
        groups = " ".join(map(json.dumps, user.groups))
        message = f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:'
        reason = "\n".join([message, *sorted(map(str, missing_rules))])
        resource = _RBAC_RESOURCES[f"{new['kind']}.{authorization.GROUP}"]
        raise authorization.forbidden_resource_error(authorization.GROUP, resource, metadata.get("name", ""), reason)


def _forbidden_policy_error(policy: Obj, reason: str) -> api_request.StatusError:
    info = scheme.find_kind(policy["apiVersion"], policy["kind"])
    assert info is not None, policy["kind"]
    return authorization.forbidden_resource_error(info.group, info.plural, policy["metadata"].get("name", ""), reason)


def _changes_only_lifecycle_fields(new: Obj, old: Obj | None) -> bool:
    return old is not None and _drop_lifecycle_fields(new) == _drop_lifecycle_fields(old)


def _drop_lifecycle_fields(obj: Obj) -> Obj:
    ignored_fields = ("ownerReferences", "finalizers", "managedFields", "resourceVersion")
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name not in ignored_fields}}


# If the machine cannot isolate pods, only the owner of the platform (in `system:masters`) may start pods on it.
#
# Every pod comes from an object that a request writes: the pod itself, or an object with its template, of which a
# built-in controller or one of `--job-controllers` creates it. The authorizer therefore denies those writes to other
# users, and also commands in the owner's containers. It denies connections to pods, too: pods without a network of
# their own listen on the machine's.


_WRITE_VERBS: Final = frozenset({"create", "update", "patch"})
#: All kinds of which built-in controllers run pods: a test compares them with the schemas.
_POD_KINDS: Final = frozenset(
    {
        *(("", "pods"), ("", "replicationcontrollers")),
        *(("batch", "jobs"), ("batch", "cronjobs"), ("jobset.x-k8s.io", "jobsets")),
        *(
            ("apps", plural)
            for plural in ("deployments", "replicasets", "statefulsets", "daemonsets", "controllerrevisions")
        ),
        *(
            (info.group, info.plural)
            for kinds in JOB_CONTROLLERS.values()
            for info in map(scheme.DESCRIBED_KINDS.__getitem__, kinds)
        ),
    }
)
#: The subresources of these kinds whose writes start pods.
_POD_SUBRESOURCES: Final = frozenset({"", "scale"})
#: The subresources of the core group that run commands in pods, or connect to pods.
_ACCESS_SUBRESOURCES: Final = frozenset({"exec", "attach", "ephemeralcontainers", "portforward", "proxy"})


class OwnerPodsAuthorizer:
    """Lets only the group `system:masters` run pods and connect to them, if the machine cannot isolate pods.

    It delegates all other requests to another authorizer.
    """

    def __init__(self, authorizer: authorization.Authorizer, find_denial_reason: Callable[[], str]) -> None:
        """Create the authorizer. `find_denial_reason` returns why the machine cannot isolate pods; '' if it can."""
        self._authorizer = authorizer
        self._find_denial_reason = find_denial_reason

    def decide(self, attributes: authorization.RequestAttributes) -> authorization.AuthorizationDecision:
        """Decide whether a request is allowed.

        If pods cannot be isolated, users outside `system:masters` may not use them; the reason says why.
        """
        if api_request.MASTERS_GROUP not in attributes.user.groups and _uses_pods(attributes):
            reason = self._find_denial_reason()
            if reason:
                return authorization.AuthorizationDecision(False, reason)
        return self._authorizer.decide(attributes)


def _uses_pods(attributes: authorization.RequestAttributes) -> bool:
    """Return whether a request starts pods, runs commands in them, or connects to them."""
    if not attributes.group and attributes.subresource in _ACCESS_SUBRESOURCES:
        return True
    is_pod_kind = (attributes.group, attributes.resource) in _POD_KINDS
    return is_pod_kind and attributes.subresource in _POD_SUBRESOURCES and attributes.verb in _WRITE_VERBS


class ServerSecurity(NamedTuple):
    """The authentication and authorization filters of an API server, its RBAC index, and its guarded resources.

    The RBAC index must observe every change of a role or binding.
    """

    auth_filters: AuthFilters
    rbac: authorization.RbacAuthorizer
    resources: Sequence[Resource]


def _no_denial_reason() -> str:
    return ""


def build_security(
    objects: ObjectReader,
    resources: Sequence[Resource],
    tokens: TokenIssuer,
    find_pods_denial_reason: Callable[[], str] = _no_denial_reason,
) -> ServerSecurity:
    """Return the request filters of an API server, and its resources with guards, token requests and reviews.

    `find_pods_denial_reason` returns why only the group `system:masters` may start pods; '' if other users may too.
    """
    rbac_authorizer = authorization.RbacAuthorizer(objects)
    guards = EscalationGuard(rbac_authorizer, objects).guards()
    guarded_resources = [
        resource._replace(guard=guards.get(resource.served_kind.constant, resource.guard)) for resource in resources
    ]
    handlers = {"token": TokenRequestHandler(objects, tokens).handlers()}
    guarded_resources = with_subresource_handlers(guarded_resources, scheme.SERVICE_ACCOUNT, handlers)
    auth_filters = AuthFilters(OwnerPodsAuthorizer(rbac_authorizer, find_pods_denial_reason), tokens)
    reviews = AccessReviews(rbac_authorizer, tokens, lambda: auth_filters.external_tokens)
    return ServerSecurity(auth_filters, rbac_authorizer, [*guarded_resources, *reviews.resources()])
