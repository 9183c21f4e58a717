"""Authentication and authorization of dashboard users by the API server, with a cache.

The operator sends TokenReviews and SubjectAccessReviews as itself, for which it needs `system:auth-delegator`. Users of
its dashboard therefore see exactly the objects that they can list at the API server.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import msgspec

from batchyard.apiserver.auth.authorization import Attributes, Decision
from batchyard.apiserver.request import UserInfo
from batchyard.base.instant import SECOND, Instant
from batchyard.client.transport import HttpRequest, decoded
from batchyard.server.operator.aiohttp_transport import HttpTransport

#: How long a cached answer is valid.
GOOD_FOR: Final = 30 * SECOND
#: The maximum number of cached users, and of cached permissions.
KNOWN_MAX: Final = 50_000
_AT_ONCE: Final = 16
_AUTHENTICATION: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_encode = msgspec.json.Encoder().encode

_Question: TypeAlias = tuple[UserInfo, str, str, str]
"""A user, and the API group, plural resource name and namespace that the user wants to list."""


class TokenReviewer:
    """An Authorizer for dashboard users that decides from a cache of reviews by the API server.

    It denies requests that are not in the cache, and records them; `settle` sends their reviews.
    """

    def __init__(self, wire: HttpTransport, now: Callable[[], Instant]) -> None:
        self._wire = wire
        self._now = now
        self._users: dict[bytes, tuple[Instant, UserInfo | None]] = {}
        self._rights: dict[_Question, tuple[Instant, bool]] = {}
        #: Requests that were decided without a cached review, or with an expired one.
        self._open: dict[_Question, None] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def user_of(self, token: str) -> UserInfo | None:
        """Return the user that a bearer token authenticates; None if the token is invalid."""
        digest = hashlib.sha256(token.encode()).digest()
        asked_at, user = self._users.get(digest, (-GOOD_FOR, None))
        if self._now() - asked_at < GOOD_FOR:
            return user
        status = await self._review(_AUTHENTICATION, "TokenReview", {"token": token})
        user = _user(status.get("user") or {}) if status.get("authenticated") is True else None
        if len(self._users) >= KNOWN_MAX:
            self._users.clear()
        self._users[digest] = self._now(), user
        return user

    def decide(self, attributes: Attributes) -> Decision:
        """Decide about a request from the cache, and record it if its review is missing or expired."""
        question = attributes.user, attributes.group, attributes.resource, attributes.namespace
        asked_at, allowed = self._rights.get(question, (-GOOD_FOR, False))
        if self._now() - asked_at >= GOOD_FOR:
            self._open[question] = None
        return Decision(allowed)

    async def settle(self) -> bool:
        """Send reviews for the recorded requests. Return whether any result differs from the decision made before."""
        questions, self._open = list(self._open), {}
        return any(await asyncio.gather(*map(self._settle, questions)))

    async def _settle(self, question: _Question) -> bool:
        user, group, plural, namespace = question
        about = {"verb": "list", "group": group, "resource": plural, "namespace": namespace}
        asked = {"user": user.name, "groups": list(user.groups), "uid": user.uid, "extra": dict(user.extra)}
        async with self._at_once:
            status = await self._review(_AUTHORIZATION, "SubjectAccessReview", {**asked, "resourceAttributes": about})
        _, before = self._rights.get(question, (0, False))
        allowed = status.get("allowed") is True
        if len(self._rights) >= KNOWN_MAX:
            self._rights.clear()
        self._rights[question] = self._now(), allowed
        return allowed is not before

    async def _review(self, path: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Send a review to the API server and return its status; on errors an empty status, which allows nothing."""
        group = path.removeprefix("/apis/").rpartition("/")[0]
        body = _encode({"apiVersion": group, "kind": kind, "spec": spec})
        answer = await self._wire.ask(HttpRequest("POST", path, body))
        status: dict[str, Any] = decoded(answer.body).get("status") or {} if answer.code in (200, 201) else {}
        return status


def _user(info: dict[str, Any]) -> UserInfo:
    extra: Iterable[tuple[str, list[str]]] = (info.get("extra") or {}).items()
    groups = tuple(info.get("groups") or ())
    return UserInfo(info.get("username", ""), groups, info.get("uid", ""), tuple((k, tuple(v)) for k, v in extra))
