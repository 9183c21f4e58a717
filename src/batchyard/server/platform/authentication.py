"""Authentication of bearer tokens of other issuers: their keys, the token webhook, caches, and bounds.

The thread of the server verifies a token at once if a key that it holds has signed the token. Keys are fetched in the
background. A token with an unknown key, or for the webhook, waits at most WAIT_MAX seconds.
Sources: k8s.io/apiserver, plugin/pkg/authenticator/token/{oidc,webhook}; github.com/coreos/go-oidc.
"""

import asyncio
import hashlib
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec
import yaml

from batchyard.apiserver.auth.tokens import DASHBOARD_ISSUER, ISSUER, TokenOutcome
from batchyard.apiserver.external_tokens.configuration import (
    InvalidAuthentication,
    TokenIssuerSettings,
    parse_authentication,
)
from batchyard.apiserver.external_tokens.signatures import (
    SignedToken,
    TokenRejected,
    UnknownKey,
    VerificationKey,
    parse_key_set,
    parse_token,
)
from batchyard.apiserver.external_tokens.users import expiry_of, user_of_token
from batchyard.apiserver.request import AUTHENTICATED_GROUP, PAGE_TOKEN_EXTRA, PENDING_USER, StatusError, UserInfo
from batchyard.base.instant import MINUTE, SECOND, Instant
from batchyard.base.primitives import LruCache
from batchyard.client.transport import HttpRequest, decode_object
from batchyard.server.clocks.wall import sleep_for, wall_clock
from batchyard.server.kubeconfig.access import KubeconfigError, KubeconfigSource
from batchyard.server.kubeconfig.loading import read_access
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.platform.credentials import CredentialsError
from batchyard.server.platform.data_dir import PlatformOptions

#: The time in seconds that a request waits for the authentication of its token.
WAIT_MAX: Final = 12.0
#: The maximum number of requests that wait, and of those from one client address.
WAITING_MAX: Final = 256
ADDRESS_WAITING_MAX: Final = 128
#: The maximum number of requests that wait with tokens that were valid before. They do not count as other ones, so that
#: users are not locked out while clients send tokens that are not valid.
KNOWN_WAITING_MAX: Final = 256
#: The maximum number of webhook calls in flight, for unknown tokens and for those that were valid before.
REVIEWS_MAX: Final = 32
KNOWN_REVIEWS_MAX: Final = 16
_REVIEW_TIMEOUT: Final = 10 * SECOND
#: How long an answer of the webhook, and the user of a verified token, are cached.
REVIEW_CACHED: Final = 2 * MINUTE
_USER_CACHED: Final = 10 * SECOND
_CACHE_SIZE: Final = 4096
#: The intervals between fetches of an issuer's keys: regularly, after a failure, and the shortest one.
_KEYS_REFRESH: Final = 3600 * SECOND
_KEYS_RETRY: Final = 10 * SECOND
_FETCH_INTERVAL_MIN: Final = 5 * SECOND
_FETCH_TIMEOUT: Final = 5.0  # seconds
_DOCUMENT_SIZE_MAX: Final = 1024 * 1024
_NETWORK_ERRORS: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
_LOG: Final = logging.getLogger("batchyard")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class AuthenticationFileError(CredentialsError):
    """A file that configures authentication is not valid. The message contains the reason."""


class _CachedUser(NamedTuple):
    user: UserInfo
    valid_until: Instant


class IssuerKeys:
    """The public keys of an issuer, which a task fetches in the background."""

    def __init__(
        self, settings: TokenIssuerSettings, fetch: Callable[[], Awaitable[Sequence[VerificationKey]]]
    ) -> None:
        self.settings = settings
        self.keys: Sequence[VerificationKey] = ()
        self._fetch = fetch
        self._is_wanted = asyncio.Event()
        self._fetch_end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_problem = ""

    async def run(self) -> None:
        """Fetch the keys regularly and when `renewed` is called, until the task is canceled."""
        while True:
            self._is_wanted.clear()
            is_fetched = await self._fetch_keys()
            fetch_end, self._fetch_end = self._fetch_end, asyncio.get_running_loop().create_future()
            fetch_end.set_result(None)
            await sleep_for(_FETCH_INTERVAL_MIN)
            interval = (_KEYS_REFRESH if is_fetched else _KEYS_RETRY) - _FETCH_INTERVAL_MIN
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_wanted.wait(), interval / SECOND)

    async def renewed(self) -> None:
        """Wait until the next fetch of the keys has ended."""
        self._is_wanted.set()
        await asyncio.shield(self._fetch_end)

    async def _fetch_keys(self) -> bool:
        try:
            self.keys = await self._fetch()
        except _NETWORK_ERRORS as error:
            problem = str(error) or type(error).__name__
            if problem != self._last_problem:
                _LOG.warning("cannot fetch the keys of the token issuer %s: %s", self.settings.url, problem)
            self._last_problem = problem
            return False
        self._last_problem = ""
        return True


class TokenWebhook:
    """A TokenReview webhook: asks another server for the users of tokens, with bounded concurrency."""

    def __init__(self, transport: HttpTransport, path: str) -> None:
        self._transport = transport
        self._path = path
        self._slots = asyncio.Semaphore(REVIEWS_MAX)
        self._known_slots = asyncio.Semaphore(KNOWN_REVIEWS_MAX)

    async def user_of(self, token: str, *, was_valid: bool) -> UserInfo | None:
        """Return the user of a token; None if it is not valid. Raises OSError if the webhook gives no valid answer."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}}
        body = _encode({**review, "spec": {"token": token, "audiences": [ISSUER]}})
        async with self._known_slots if was_valid else self._slots:
            request = HttpRequest("POST", self._path, body, _REVIEW_TIMEOUT)
            response = await self._transport.send_request_with_retries(request)
        if response.code not in (200, 201):
            raise OSError(response.trouble or f"the webhook responded with status {response.code}")
        status = decode_object(response.body).get("status")
        if not isinstance(status, Mapping) or status.get("authenticated") is not True:
            return None
        audiences = status.get("audiences") or (ISSUER,)
        return _reviewed_user(status.get("user")) if ISSUER in audiences else None

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()


class ExternalTokenAuthenticator:
    """Authenticates the bearer tokens that the platform has not issued itself."""

    def __init__(self, issuers: Sequence[IssuerKeys], webhook: TokenWebhook | None) -> None:
        self._issuers = {issuer.settings.url: issuer for issuer in issuers}
        self._webhook = webhook
        #: The users of valid tokens, which stay known after their time in the cache, and the tokens that are not valid.
        self._users: LruCache[bytes, _CachedUser] = LruCache(_CACHE_SIZE)
        self._rejected: LruCache[bytes, Instant] = LruCache(_CACHE_SIZE)
        self._tasks: dict[asyncio.Task[None], None] = {}
        #: The authentications in progress, by the digest of the token.
        self._pending: dict[bytes, list[Callable[[TokenOutcome], None]]] = {}
        self._waiting_by_address: Counter[str] = Counter()
        self._known_waiting_count = 0
        for issuer in issuers:
            self._start(issuer.run())

    def find_user(self, token: str) -> UserInfo | None:
        """Return the user of a token, None if it is not valid, or PENDING_USER if only `finish` can determine that."""
        digest, now = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest(), wall_clock()
        cached_user = self._users.get(digest)
        if cached_user is not None and now < cached_user.valid_until:
            return cached_user.user
        if now < (self._rejected.get(digest) or 0):
            return None
        parsed_token, issuer = self._issuer_of(token)
        if parsed_token is not None and issuer is not None:
            try:
                return self._verify(parsed_token, issuer, digest)
            except UnknownKey:
                return PENDING_USER
            except TokenRejected as error:
                _LOG.info("a token of %s is rejected: %s", issuer.settings.url, error)
        return None if self._webhook is None else PENDING_USER

    def finish(self, token: str, client_address: str, on_result: Callable[[TokenOutcome], None]) -> None:
        """Authenticate a token for which `find_user` returned PENDING_USER; `on_result` gets the outcome later.

        Raises StatusError (429) if too many requests wait, in total or from this client address.
        """
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        is_known = self._users.get(digest) is not None
        self._enter(client_address, is_known=is_known)

        def end(user: TokenOutcome) -> None:
            self._leave(client_address, is_known=is_known)
            on_result(user)

        waiters = self._pending.setdefault(digest, [])
        waiters.append(end)
        if len(waiters) == 1:
            self._start(self._authenticate(token, digest, is_known=is_known))

    def _enter(self, client_address: str, *, is_known: bool) -> None:
        if is_known:
            limit, count = KNOWN_WAITING_MAX, self._known_waiting_count
        elif self._waiting_by_address[client_address] >= ADDRESS_WAITING_MAX:
            limit, count = ADDRESS_WAITING_MAX, ADDRESS_WAITING_MAX
        else:
            limit, count = WAITING_MAX, self._waiting_by_address.total()
        if count >= limit:
            problem = f"{limit} requests wait for the authentication of their tokens"
            raise StatusError(429, "TooManyRequests", f"{problem}; try again later", {"retryAfterSeconds": 1})
        if is_known:
            self._known_waiting_count += 1
        else:
            self._waiting_by_address[client_address] += 1

    def _leave(self, client_address: str, *, is_known: bool) -> None:
        if is_known:
            self._known_waiting_count -= 1
            return
        self._waiting_by_address[client_address] -= 1
        if not self._waiting_by_address[client_address]:
            del self._waiting_by_address[client_address]

    async def close(self) -> None:
        """Cancel the tasks, and close the connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._webhook is not None:
            await self._webhook.close()

    async def _authenticate(self, token: str, digest: bytes, *, is_known: bool) -> None:
        user: UserInfo | None = None
        try:
            async with asyncio.timeout(WAIT_MAX):
                user = await self._user_with_new_key(token, digest)
                if user is None and self._webhook is not None:
                    user = await self._webhook.user_of(token, was_valid=is_known)
                    if user is None:
                        self._rejected.put(digest, wall_clock() + REVIEW_CACHED)
                    else:
                        self._users.put(digest, _CachedUser(user, wall_clock() + REVIEW_CACHED))
        except (OSError, TimeoutError, ValueError) as error:
            _LOG.warning("a token cannot be authenticated: %s", str(error) or type(error).__name__)
        finally:
            for on_result in self._pending.pop(digest):
                on_result(user)

    async def _user_with_new_key(self, token: str, digest: bytes) -> UserInfo | None:
        parsed_token, issuer = self._issuer_of(token)
        if parsed_token is None or issuer is None:
            return None
        for attempt in range(2):
            try:
                return self._verify(parsed_token, issuer, digest)
            except UnknownKey as error:
                if attempt:
                    _LOG.info("a token of %s is rejected: %s", issuer.settings.url, error)
                else:
                    await issuer.renewed()
            except TokenRejected:
                return None
        return None

    def _issuer_of(self, token: str) -> tuple[SignedToken | None, IssuerKeys | None]:
        try:
            parsed_token = parse_token(token)
        except TokenRejected:
            return None, None
        url = parsed_token.unverified_claims.get("iss")
        return parsed_token, self._issuers.get(url) if isinstance(url, str) else None

    def _verify(self, token: SignedToken, issuer: IssuerKeys, digest: bytes) -> UserInfo:
        now = wall_clock()
        user = user_of_token(token, issuer.settings, issuer.keys, now)
        self._users.put(digest, _CachedUser(user, min(now + _USER_CACHED, expiry_of(token))))
        return user

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda ended_task: self._tasks.pop(ended_task, None))


async def open_external_tokens(options: PlatformOptions) -> ExternalTokenAuthenticator:
    """Return the authenticator that a platform's options configure. Raises AuthenticationFileError."""
    issuers = [] if options.authentication_config is None else _read_issuers(options.authentication_config)
    webhook = None if options.token_webhook_config is None else await _open_webhook(options.token_webhook_config)
    return ExternalTokenAuthenticator([_issuer_keys(settings) for settings in issuers], webhook)


def _read_issuers(path: Path) -> Sequence[TokenIssuerSettings]:
    try:
        return parse_authentication(yaml.safe_load(path.read_text("utf-8")), (ISSUER, DASHBOARD_ISSUER))
    except InvalidAuthentication as error:
        raise AuthenticationFileError("\n".join(f"{path}: {fault}" for fault in error.faults)) from error
    except OSError as error:
        raise AuthenticationFileError(f"{path}: {error.strerror}; set another file") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise AuthenticationFileError(f"{path}: the file is not YAML: {error}") from error


async def _open_webhook(path: Path) -> TokenWebhook:
    try:
        access = await read_access(KubeconfigSource(str(path)))
    except KubeconfigError as error:
        raise AuthenticationFileError(str(error)) from error
    parts = urlsplit(access.url)
    target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    origin_access = access._replace(url=f"{parts.scheme}://{parts.netloc}")

    async def keep_access() -> Any:
        return origin_access

    return TokenWebhook(HttpTransport(origin_access, keep_access), target)


def _issuer_keys(settings: TokenIssuerSettings) -> IssuerKeys:
    authority = settings.certificate_authority or None
    tls_context = ssl.create_default_context(cadata=authority)

    async def fetch() -> Sequence[VerificationKey]:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_FETCH_TIMEOUT)) as session:
            discovery = _decode_discovery(await _read_document(session, settings.discovery_url, tls_context))
            issuer, keys_url = (discovery.get(field) for field in ("issuer", "jwks_uri"))
            if issuer != settings.url:
                raise ValueError(f'issuer did not match the issuer returned by provider: "{issuer}"')
            if not isinstance(keys_url, str) or not keys_url.startswith("https://"):
                raise ValueError("the discovery document has no https URL of keys (jwks_uri)")
            return parse_key_set(await _read_document(session, keys_url, tls_context))

    return IssuerKeys(settings, fetch)


def _decode_discovery(document: bytes) -> Mapping[str, Any]:
    try:
        discovery = _decode(document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the discovery document is not JSON: {error}") from error
    if not isinstance(discovery, dict):
        raise ValueError("the discovery document is not an object")  # noqa: TRY004 - as for malformed JSON
    return discovery


async def _read_document(session: aiohttp.ClientSession, url: str, tls_context: ssl.SSLContext) -> bytes:
    async with session.get(url, ssl=tls_context, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"{url} responded with status {response.status}")
        document = bytearray()
        async for chunk in response.content.iter_any():
            document += chunk
            if len(document) > _DOCUMENT_SIZE_MAX:
                raise ValueError(f"{url}: the document has more than {_DOCUMENT_SIZE_MAX} bytes")
        return bytes(document)


def _reviewed_user(fields: Any) -> UserInfo | None:
    """Return the user in a TokenReview, with the group of authenticated users; None if it is malformed."""
    try:
        user = msgspec.convert(fields, _ReviewedUser)
    except msgspec.ValidationError:
        return None
    if not user.username:
        return None
    groups = tuple(dict.fromkeys((*user.groups, AUTHENTICATED_GROUP)))
    extra = tuple((key, tuple(values)) for key, values in user.extra.items() if key != PAGE_TOKEN_EXTRA)
    return UserInfo(user.username, groups, user.uid, extra)


class _ReviewedUser(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}
