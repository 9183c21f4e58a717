"""Acting as somebody else, by the headers Impersonate-*.

Source: k8s.io/apiserver, pkg/endpoints/filters/impersonation.go.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from batchyard.apiserver.authentication import (
    ANONYMOUS,
    AUTHENTICATED,
    UNAUTHENTICATED,
    User,
    account_groups,
    account_of,
)
from batchyard.apiserver.authorization import Attributes
from batchyard.apiserver.request import SEPARATOR, Request, bad_request

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
