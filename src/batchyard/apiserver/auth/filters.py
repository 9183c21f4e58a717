"""At the door: who asks, as whom, and whether he may. Source of the order: k8s.io/apiserver, pkg/server/config.go."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from batchyard.apiserver.auth.authentication import (
    ANONYMOUS,
    AUTHENTICATED,
    UNAUTHENTICATED,
    User,
    account_groups,
    account_of,
)
from batchyard.apiserver.auth.authorization import Attributes, Authorizer, attributes_of, forbidden
from batchyard.apiserver.auth.tokens import Tokens
from batchyard.apiserver.dashboard import MODELS
from batchyard.apiserver.request import SEPARATOR, Refused, Request, bad_request
from batchyard.apiserver.resources import ResourcePath, part_at

# --- impersonation ---
#
# Acting as somebody else, by the headers Impersonate-*.
#
# Source: k8s.io/apiserver, pkg/endpoints/filters/impersonation.go.


_AUTHENTICATION: Final = "authentication.k8s.io"
_PREFIX: Final = "impersonate-"
_USER: Final = "impersonate-user"
_GROUP: Final = "impersonate-group"
_UID: Final = "impersonate-uid"
_EXTRA: Final = "impersonate-extra-"


def impersonated(request: Request) -> User | None:
    """Whom a request is made as; None if it says nothing of that."""
    if _PREFIX not in "\n".join(request.headers):  # as of nearly all
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
    return User(name, groups, request.headers.get(_UID, ""), extra)


def rights_needed(user: User, request: Request) -> Iterator[Attributes]:
    """What a user must be allowed to make that request as somebody else: to impersonate each thing it names."""
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


def _extra(request: Request) -> Iterator[tuple[str, list[str]]]:
    for header, value in request.headers.items():
        if header.startswith(_EXTRA):
            yield unquote(header.removeprefix(_EXTRA)), value.split(SEPARATOR)


HEALTH: Final = ("healthz", "livez", "readyz")
#: What whoever comes by may ask.
_OPEN: Final = (*HEALTH, "version", "ui")
_SCHEME: Final = "bearer"
#: Parts of objects that the page shows beside its models.
_LOOKED_AT: Final = ("why", "eta")


class Access:
    """See the module."""

    def __init__(self, authorizer: Authorizer, tokens: Tokens) -> None:
        self._authorizer = authorizer
        self._tokens = tokens

    def authenticated(self, request: Request) -> Request:
        """The request with the user that its certificate or its token names; Refused where they are not good."""
        if request.user != ANONYMOUS:
            return request
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == _SCHEME and token.strip():
            user = self._tokens.user_of(token.strip())
            if user is None and is_for_looking(request):
                user = self._tokens.looker_of(token.strip())
            if user is None:
                raise unauthorized()
            return request.made_by(user)
        if not _is_open(request):
            raise unauthorized()
        return request

    def acting(self, request: Request) -> Request:
        """The request with the user it is made as, if it says so and its own user may do that."""
        user = impersonated(request)
        if user is None:
            return request
        for attributes in rights_needed(request.user, request):
            decision = self._authorizer.decide(attributes)
            if not decision.allowed:
                raise forbidden(attributes, decision.reason)
        return request.made_by(user)

    def check(self, request: Request, path: ResourcePath | None, verb: str = "") -> None:
        """Refused unless its user may do what the request is about to do, or what the verb says."""
        if path is None and _is_open(request):
            return
        attributes = attributes_of(request, path)
        if verb:
            attributes = attributes._replace(verb=verb)
        decision = self._authorizer.decide(attributes)
        if not decision.allowed:
            raise forbidden(attributes, decision.reason)


def unauthorized() -> Refused:
    """The refusal of those who do not show who they are."""
    return Refused(401, "Unauthorized", "Unauthorized")


def is_for_looking(request: Request) -> bool:
    """Whether a token that was made for the page is good for a request: it reads models, and answers about objects."""
    if request.method != "GET" or "upgrade" in request.headers:
        return False
    return request.path.startswith(MODELS) or part_at(request.path) in _LOOKED_AT


def _is_open(request: Request) -> bool:
    return request.path.strip("/").split("/")[0] in _OPEN
