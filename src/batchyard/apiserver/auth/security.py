"""The security of a server: filters, RBAC index, guards of roles, review and token resources."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from batchyard.api import scheme
from batchyard.api.meta import Obj
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
from batchyard.apiserver.auth.reviews import Reviews, TokenRequests
from batchyard.apiserver.auth.tokens import Tokens
from batchyard.apiserver.dashboard import MODELS
from batchyard.apiserver.request import (
    ANONYMOUS,
    AUTHENTICATED,
    MASTERS,
    SEPARATOR,
    UNAUTHENTICATED,
    ApiRequest,
    StatusError,
    UserInfo,
    account_groups,
    account_of,
    bad_request,
)
from batchyard.apiserver.resources import Resource, ResourcePath, WriteGuard, part_at, with_answers
from batchyard.interfaces.client import ObjectReader

"""Returns the status of a review, from the request, the spec and the namespace of the path."""


# --- impersonation ---
#
# The Impersonate-* headers make a request act as another user.
#
# Source: k8s.io/apiserver, pkg/endpoints/filters/impersonation.go.


_AUTHENTICATION: Final = "authentication.k8s.io"
# --- filters ---
#
# Request filters: authentication, impersonation, authorization.
#
# Source of the order: k8s.io/apiserver, pkg/server/config.go.


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
