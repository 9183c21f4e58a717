"""Request filters: authentication, impersonation, authorization.

Source of the order: k8s.io/apiserver, pkg/server/config.go.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from batchyard.apiserver.auth.authentication import (
    ANONYMOUS,
    AUTHENTICATED,
    UNAUTHENTICATED,
    UserInfo,
    account_groups,
    account_of,
)
from batchyard.apiserver.auth.authorization import Attributes, Authorizer, attributes_of, forbidden
from batchyard.apiserver.auth.tokens import Tokens
from batchyard.apiserver.dashboard import MODELS
from batchyard.apiserver.request import SEPARATOR, ApiRequest, StatusError, bad_request
from batchyard.apiserver.resources import ResourcePath, part_at

# --- impersonation ---
#
# The Impersonate-* headers make a request act as another user.
#
# Source: k8s.io/apiserver, pkg/endpoints/filters/impersonation.go.


_AUTHENTICATION: Final = "authentication.k8s.io"
_PREFIX: Final = "impersonate-"
_USER: Final = "impersonate-user"
_GROUP: Final = "impersonate-group"
_UID: Final = "impersonate-uid"
_EXTRA: Final = "impersonate-extra-"


def impersonated(request: ApiRequest) -> UserInfo | None:
    """Return the impersonated user; None without impersonation headers."""
    if _PREFIX not in "\n".join(request.headers):  # true for nearly all requests
        return None
    name = request.headers.get(_USER, "")
    given = [header for header in request.headers if header in {_GROUP, _UID} or header.startswith(_EXTRA)]
    if not name:
        if given:
            raise bad_request(f"requested {', '.join(given)} without impersonating a user")
        return None
    groups = tuple(group for group in request.headers.get(_GROUP, "").split(SEPARATOR) if group)
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
    for group in request.headers.get(_GROUP, "").split(SEPARATOR):
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
