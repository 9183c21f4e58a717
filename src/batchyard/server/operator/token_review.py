"""Authentication and authorization of dashboard users by the API server, with cached reviews.

The operator sends TokenReviews and SubjectAccessReviews as itself, for which it needs `system:auth-delegator`. Users of
its dashboard therefore see the objects that they may list at the API server.
"""

import asyncio
import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

import msgspec

from batchyard.apiserver.auth.authorization import AuthorizationDecision, RequestAttributes
from batchyard.apiserver.request import StatusError, UserInfo
from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import LruCache
from batchyard.client.transport import HttpRequest, HttpResponse, decode_object
from batchyard.server.operator.aiohttp_transport import HttpTransport

#: How long a cached answer is valid.
CACHE_LIFETIME: Final = 30 * SECOND
#: The age at which a cached decision is reviewed again when it is used, so that it does not expire while it is in use.
_RENEWAL_AGE: Final = 15 * SECOND
#: The maximum number of cached users, and of cached permissions.
CACHE_SIZE_MAX: Final = 50_000
_CONCURRENT_REVIEWS_MAX: Final = 16
#: The maximum number of TokenReviews in flight, which clients without a valid token can cause.
TOKEN_REVIEWS_MAX: Final = 8
#: The time in seconds that a TokenReview waits for others.
_TOKEN_REVIEW_WAIT: Final = 5.0
_TOKEN_REVIEWS_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a URL path
_ACCESS_REVIEWS_PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_encode = msgspec.json.Encoder().encode
_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class ReviewCache(Generic[_K, _V]):
    """The CACHE_SIZE_MAX answers of the API server that were used last, each valid for CACHE_LIFETIME."""

    def __init__(self, now: Callable[[], Instant]) -> None:
        self._now = now
        self._answers: LruCache[_K, tuple[Instant, _V]] = LruCache(CACHE_SIZE_MAX)

    def get(self, key: _K) -> tuple[Instant, _V] | None:
        """Return the valid answer and its time; None if there is none."""
        entry = self._answers.get(key)
        return None if entry is None or self._now() - entry[0] >= CACHE_LIFETIME else entry

    def put(self, key: _K, answer: _V, asked_at: Instant) -> None:
        """Store an answer, and drop the least recently used one if the cache is full.

        The answer is valid from the time of the question, because a permission may be revoked before it arrives.
        """
        self._answers.put(key, (asked_at, answer))


class DecisionWatch:
    """Notices changes of the cached decisions about one user, whichever request causes the reviews."""

    def __init__(self, user: UserInfo, on_change: Callable[[], None] | None) -> None:
        self.user = user
        self.has_changed = False
        self._on_change = on_change

    def process_change(self) -> None:
        """Note that a decision about the user has changed."""
        self.has_changed = True
        if self._on_change is not None:
            self._on_change()


class TokenReviewer:
    """Authenticates and authorizes dashboard users by cached TokenReviews and SubjectAccessReviews of the API server.

    It denies requests without a valid cached review. It records requests whose review is missing, expired or to be
    renewed, and `send_reviews` sends these reviews.
    """

    def __init__(self, http_transport: HttpTransport, now: Callable[[], Instant]) -> None:
        self._transport = http_transport
        self._now = now
        self._users: ReviewCache[bytes, UserInfo | None] = ReviewCache(now)
        #: The TokenReviews in progress, by the digest of the token.
        self._token_reviews: dict[bytes, asyncio.Task[UserInfo | None]] = {}
        self._token_review_slots = asyncio.Semaphore(TOKEN_REVIEWS_MAX)
        self._permissions: ReviewCache[RequestAttributes, bool] = ReviewCache(now)
        #: Requests that need a review: they were decided without a cached one, or with an old one.
        self._missing_reviews: dict[RequestAttributes, None] = {}
        self._review_slots = asyncio.Semaphore(_CONCURRENT_REVIEWS_MAX)
        self._watches: dict[DecisionWatch, None] = {}

    async def user_of(self, token: str) -> UserInfo | None:
        """Return the user that a bearer token authenticates; None if the token is invalid.

        Raises StatusError if the API server does not review the token (503), or too many reviews are in progress (429).
        """
        token_digest = hashlib.sha256(token.encode()).digest()
        cached_user = self._users.get(token_digest)
        if cached_user is not None:
            return cached_user[1]
        review = self._token_reviews.get(token_digest)
        if review is None:
            review = asyncio.create_task(self._review_token(token, token_digest))
            self._token_reviews[token_digest] = review
            review.add_done_callback(lambda ended_review: self._process_review_end(token_digest, ended_review))
        return await asyncio.shield(review)  # other requests may wait for the same review

    async def _review_token(self, token: str, token_digest: bytes) -> UserInfo | None:
        try:
            async with asyncio.timeout(_TOKEN_REVIEW_WAIT):
                await self._token_review_slots.acquire()
        except TimeoutError as error:
            problem = f"{TOKEN_REVIEWS_MAX} tokens are being checked"
            raise StatusError(
                429, "TooManyRequests", f"{problem}; try again later", {"retryAfterSeconds": 1}
            ) from error
        asked_at = self._now()
        try:
            response = await self._send_review(_TOKEN_REVIEWS_PATH, "TokenReview", {"token": token})
        finally:
            self._token_review_slots.release()
        if response.code not in (200, 201):
            problem = response.trouble or f"it responded to the TokenReview with {response.code}"
            remedy = "try again later, and check that the operator has the ClusterRole system:auth-delegator"
            raise StatusError(503, "ServiceUnavailable", f"the API server cannot check the token: {problem}; {remedy}")
        status = _review_status(response)
        user = user_info(status.get("user") or {}) if status.get("authenticated") is True else None
        self._users.put(token_digest, user, asked_at)
        return user

    def _process_review_end(self, token_digest: bytes, review: "asyncio.Task[UserInfo | None]") -> None:
        self._token_reviews.pop(token_digest, None)
        if not review.cancelled():
            review.exception()  # all requests that waited for the review may have been cancelled

    def decide(self, attributes: RequestAttributes) -> AuthorizationDecision:
        """Return the valid cached decision on a request for a resource; deny the request if there is none.

        If the cached decision is missing, expired or old, the request is recorded for the next `send_reviews`.
        """
        cached_decision = self._permissions.get(attributes)
        if cached_decision is None or self._now() - cached_decision[0] >= _RENEWAL_AGE:
            self._missing_reviews[attributes] = None
        return AuthorizationDecision(cached_decision is not None and cached_decision[1])

    async def send_reviews(self) -> None:
        """Send SubjectAccessReviews for the recorded requests."""
        missing_reviews, self._missing_reviews = list(self._missing_reviews), {}
        await asyncio.gather(*map(self._send_access_review, missing_reviews))

    @contextmanager
    def watch_decisions(self, user: UserInfo, on_change: Callable[[], None] | None = None) -> Iterator[DecisionWatch]:
        """Notice changes of the decisions about a user within the `with` block; call `on_change` after each."""
        watch = DecisionWatch(user, on_change)
        self._watches[watch] = None
        try:
            yield watch
        finally:
            del self._watches[watch]

    async def _send_access_review(self, attributes: RequestAttributes) -> None:
        user, names = attributes.user, ("verb", "group", "resource", "subresource", "namespace", "name")
        resource_attributes = {name: value for name in names if (value := getattr(attributes, name))}
        subject = {"user": user.name, "groups": list(user.groups), "uid": user.uid, "extra": dict(user.extra)}
        async with self._review_slots:
            asked_at = self._now()
            response = await self._send_review(
                _ACCESS_REVIEWS_PATH, "SubjectAccessReview", {**subject, "resourceAttributes": resource_attributes}
            )
        is_allowed = response.code in (200, 201) and _review_status(response).get("allowed") is True
        previous_decision = self._permissions.get(attributes)
        self._permissions.put(attributes, is_allowed, asked_at)
        if previous_decision is None or previous_decision[1] is not is_allowed:
            for watch in list(self._watches):
                if watch.user == user:
                    watch.process_change()

    async def _send_review(self, path: str, kind: str, spec: dict[str, Any]) -> HttpResponse:
        group = path.removeprefix("/apis/").rpartition("/")[0]
        body = _encode({"apiVersion": group, "kind": kind, "spec": spec})
        return await self._transport.send_request(HttpRequest("POST", path, body))


def _review_status(response: HttpResponse) -> Mapping[str, Any]:
    return decode_object(response.body).get("status") or {}


def user_info(fields: Mapping[str, Any]) -> UserInfo:
    """Return the user in a review of the API server, from the JSON form of the API's `UserInfo`."""
    extra: Iterable[tuple[str, list[str]]] = (fields.get("extra") or {}).items()
    groups = tuple(fields.get("groups") or ())
    return UserInfo(fields.get("username", ""), groups, fields.get("uid", ""), tuple((k, tuple(v)) for k, v in extra))
