"""Authentication and authorization of dashboard users by the API server, with cached reviews.

The operator sends TokenReviews and SubjectAccessReviews as itself, for which it needs `system:auth-delegator`. Users of
its dashboard therefore see the objects that they may list at the API server.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from batchyard.apiserver.auth.authorization import AuthorizationDecision, RequestAttributes
from batchyard.apiserver.request import UserInfo
from batchyard.base.instant import SECOND, Instant
from batchyard.client.transport import HttpRequest, decode_object
from batchyard.server.operator.aiohttp_transport import HttpTransport

#: How long a cached answer is valid.
CACHE_LIFETIME: Final = 30 * SECOND
#: The maximum number of cached users, and of cached permissions.
CACHE_SIZE_MAX: Final = 50_000
_CONCURRENT_REVIEWS_MAX: Final = 16
_TOKEN_REVIEWS_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a URL path
_ACCESS_REVIEWS_PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_encode = msgspec.json.Encoder().encode


class TokenReviewer:
    """Authenticates and authorizes dashboard users by cached TokenReviews and SubjectAccessReviews of the API server.

    It denies requests that were never reviewed. It records requests whose review is missing or expired, and
    `send_reviews` sends these reviews.
    """

    def __init__(self, http_transport: HttpTransport, now: Callable[[], Instant]) -> None:
        self._transport = http_transport
        self._now = now
        self._users: dict[bytes, tuple[Instant, UserInfo | None]] = {}
        self._permissions: dict[RequestAttributes, tuple[Instant, bool]] = {}
        #: Requests that were decided without a cached review, or with an expired one.
        self._missing_reviews: dict[RequestAttributes, None] = {}
        self._review_slots = asyncio.Semaphore(_CONCURRENT_REVIEWS_MAX)

    async def user_of(self, token: str) -> UserInfo | None:
        """Return the user that a bearer token authenticates; None if the token is invalid or cannot be reviewed."""
        token_digest = hashlib.sha256(token.encode()).digest()
        reviewed_at, user = self._users.get(token_digest, (-CACHE_LIFETIME, None))
        if self._now() - reviewed_at < CACHE_LIFETIME:
            return user
        status = await self._send_review(_TOKEN_REVIEWS_PATH, "TokenReview", {"token": token})
        user = _user_info(status.get("user") or {}) if status.get("authenticated") is True else None
        if len(self._users) >= CACHE_SIZE_MAX:
            self._users.clear()
        self._users[token_digest] = self._now(), user
        return user

    def decide(self, attributes: RequestAttributes) -> AuthorizationDecision:
        """Return the cached decision on a request for a resource; deny the request if none is cached.

        If the cached decision is missing or outdated, the request is recorded for the next `send_reviews`.
        """
        reviewed_at, is_allowed = self._permissions.get(attributes, (-CACHE_LIFETIME, False))
        if self._now() - reviewed_at >= CACHE_LIFETIME:
            self._missing_reviews[attributes] = None
        return AuthorizationDecision(is_allowed)

    async def send_reviews(self) -> bool:
        """Send SubjectAccessReviews for the recorded requests. Return whether a result differs from the cached one."""
        missing_reviews, self._missing_reviews = list(self._missing_reviews), {}
        return any(await asyncio.gather(*map(self._send_access_review, missing_reviews)))

    async def _send_access_review(self, attributes: RequestAttributes) -> bool:
        user, names = attributes.user, ("verb", "group", "resource", "subresource", "namespace", "name")
        resource_attributes = {name: value for name in names if (value := getattr(attributes, name))}
        subject = {"user": user.name, "groups": list(user.groups), "uid": user.uid, "extra": dict(user.extra)}
        async with self._review_slots:
            status = await self._send_review(
                _ACCESS_REVIEWS_PATH, "SubjectAccessReview", {**subject, "resourceAttributes": resource_attributes}
            )
        _, previously_allowed = self._permissions.get(attributes, (0, False))
        is_allowed = status.get("allowed") is True
        if len(self._permissions) >= CACHE_SIZE_MAX:
            self._permissions.clear()
        self._permissions[attributes] = self._now(), is_allowed
        return is_allowed is not previously_allowed

    async def _send_review(self, path: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Send a review to the API server; return its status, or an empty status, which allows nothing, on errors."""
        group = path.removeprefix("/apis/").rpartition("/")[0]
        body = _encode({"apiVersion": group, "kind": kind, "spec": spec})
        response = await self._transport.send_request(HttpRequest("POST", path, body))
        status: dict[str, Any] = decode_object(response.body).get("status") or {} if response.code in (200, 201) else {}
        return status


def _user_info(fields: dict[str, Any]) -> UserInfo:
    extra: Iterable[tuple[str, list[str]]] = (fields.get("extra") or {}).items()
    groups = tuple(fields.get("groups") or ())
    return UserInfo(fields.get("username", ""), groups, fields.get("uid", ""), tuple((k, tuple(v)) for k, v in extra))
