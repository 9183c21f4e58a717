"""Whom a token names, and what he may list: asked of the API server, which decides, and remembered for a while.

The operator asks as itself (TokenReview and SubjectAccessReview, for which it needs `system:auth-delegator`), so that
whoever looks at its page sees what he would see there, and no more.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import msgspec

from batchyard.apiserver.auth.authentication import User
from batchyard.apiserver.auth.authorization import Attributes, Decision
from batchyard.base.instant import SECOND, Instant
from batchyard.client.transport import HttpRequest
from batchyard.client.writes import decoded
from batchyard.server.operator.aiohttp_transport import HttpTransport

#: How long an answer is good.
GOOD_FOR: Final = 30 * SECOND
#: Of how many users and rights answers are kept.
KNOWN_MAX: Final = 50_000
_AT_ONCE: Final = 16
_AUTHENTICATION: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_encode = msgspec.json.Encoder().encode

_Question: TypeAlias = tuple[User, str, str, str]
"""A user, and the group, plural and namespace of what he would list."""


class Reviewed:
    """See the module. An Authorizer that knows what was asked; what it does not know yet it refuses, and notes."""

    def __init__(self, wire: HttpTransport, now: Callable[[], Instant]) -> None:
        self._wire = wire
        self._now = now
        self._users: dict[bytes, tuple[Instant, User | None]] = {}
        self._rights: dict[_Question, tuple[Instant, bool]] = {}
        #: What was decided on without being known, or known well.
        self._open: dict[_Question, None] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def user_of(self, token: str) -> User | None:
        """Whom a token names; None if nobody."""
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
        """Whether it may be done, as far as that is known."""
        question = attributes.user, attributes.group, attributes.resource, attributes.namespace
        asked_at, allowed = self._rights.get(question, (-GOOD_FOR, False))
        if self._now() - asked_at >= GOOD_FOR:
            self._open[question] = None
        return Decision(allowed)

    async def settle(self) -> bool:
        """Ask what was not known; whether anything is other than was decided."""
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
        """The status of a review; nothing where there is no answer, which allows nothing."""
        group = path.removeprefix("/apis/").rpartition("/")[0]
        body = _encode({"apiVersion": group, "kind": kind, "spec": spec})
        answer = await self._wire.ask(HttpRequest("POST", path, body))
        status: dict[str, Any] = decoded(answer.body).get("status") or {} if answer.code in (200, 201) else {}
        return status


def _user(told: dict[str, Any]) -> User:
    extra: Iterable[tuple[str, list[str]]] = (told.get("extra") or {}).items()
    groups = tuple(told.get("groups") or ())
    return User(told.get("username", ""), groups, told.get("uid", ""), tuple((k, tuple(v)) for k, v in extra))
