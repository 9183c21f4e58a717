"""ServiceAccount and dashboard tokens: JSON Web Tokens that the platform signs and verifies.

A ServiceAccount token is valid for its audiences until it expires, while its ServiceAccount and the pod or Secret it is
bound to exist. Its times are wall-clock times even if the platform runs on simulated time: external clients read them.
Sources: Kubernetes's pkg/serviceaccount/{claims,jwt}.go and pkg/registry/core/serviceaccount/storage/token.go.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.request import (
    ACTIONS_TOKEN,
    AUTHENTICATED_GROUP,
    PAGE_TOKEN_EXTRA,
    READ_ONLY_TOKEN,
    UserInfo,
    account_groups,
    service_account_username,
)
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import ObjectReader

#: The issuer of ServiceAccount tokens, and their default audience.
ISSUER: Final = "https://kubernetes.default.svc"
#: The issuer of tokens for the dashboard.
DASHBOARD_ISSUER: Final = "https://batchyard.dev/page"
#: The issuer of action tokens, and their duration in seconds.
ACTION_ISSUER: Final = "https://batchyard.dev/page-action"
ACTION_TOKEN_SECONDS: Final = 600
ALGORITHM: Final = "ES256"
_BINDABLE_KINDS: Final[Mapping[str, str]] = {"pod": scheme.POD, "secret": scheme.SECRET}
_TOKEN_LENGTH_MAX: Final = 16 * 1024
_decode_json = msgspec.json.Decoder(strict=True).decode
_encode_json = msgspec.json.Encoder().encode


class Signer(Protocol):
    """A key that signs messages and verifies its own signatures."""

    @property
    def key_id(self) -> str:
        """The ID of the key, as it appears in token headers."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message."""

    def is_signed(self, message: bytes, signature: bytes) -> bool:
        """Return whether the signature of a message is valid."""


TokenOutcome: TypeAlias = UserInfo | None
"""The user of a token; None if the token is not valid."""


class ExternalTokens(Protocol):
    """Authenticates tokens that other issuers have signed."""

    def find_user(self, token: str) -> UserInfo | None:
        """Return the user of a token, None if it is not valid, or PENDING_USER if only `finish` can determine that."""

    def finish(self, token: str, client_address: str, on_result: Callable[[TokenOutcome], None]) -> None:
        """Authenticate a token for which `find_user` returned PENDING_USER; `on_result` gets the outcome later.

        Raises StatusError if too many requests wait.
        """


class VerifiedToken(NamedTuple):
    """The user and the audiences of a valid ServiceAccount token."""

    user: UserInfo
    audiences: tuple[str, ...]


class TokenIssuer:
    """Issues and verifies ServiceAccount tokens and action tokens, and verifies dashboard tokens.

    A dashboard token authenticates a user. An action token proves that a request comes from the dashboard.
    """

    def __init__(self, objects: ObjectReader, signer: Signer, clock: Callable[[], Instant]) -> None:
        self._objects = objects
        self._signer = signer
        self.clock = clock

    def user_of(self, token: str) -> UserInfo | None:
        """Return the user of a ServiceAccount token that is valid for this server; None if it is not."""
        verified_token = self.verify_token(token)
        return verified_token.user if verified_token is not None and ISSUER in verified_token.audiences else None

    def dashboard_user_of(self, token: str) -> UserInfo | None:
        """Return the user of a dashboard token; None if the token is not a valid dashboard token."""
        claims, now = self._decode_claims(token), self.clock() // SECOND
        if claims is None or claims["iss"] != DASHBOARD_ISSUER or not claims["nbf"] <= now < claims["exp"]:
            return None
        permission = ACTIONS_TOKEN if claims.get("actions") is True else READ_ONLY_TOKEN
        extra = ((PAGE_TOKEN_EXTRA, (permission,)),)
        return UserInfo(claims["sub"], (*claims["groups"], AUTHENTICATED_GROUP), extra=extra)

    def issue_action_token(self, user: UserInfo) -> str:
        """Return an action token, valid for ACTION_TOKEN_SECONDS.

        The token proves that a request comes from the dashboard, but is no credential.
        """
        now = self.clock() // SECOND
        claims = {"iss": ACTION_ISSUER, "nbf": now, "exp": now + ACTION_TOKEN_SECONDS, "sub": user.name}
        return _sign_claims(self._signer, {**claims, "groups": list(user.groups)})

    def is_action_token(self, token: str, user: UserInfo) -> bool:
        """Return whether a token is a valid action token of a user."""
        claims, now = self._decode_claims(token), self.clock() // SECOND
        if claims is None or claims["iss"] != ACTION_ISSUER or not claims["nbf"] <= now < claims["exp"]:
            return False
        return bool(claims["sub"] == user.name and claims["groups"] == list(user.groups))

    def issue_account_token(
        self, account: Obj, bound_object: Obj | None, audiences: Sequence[str], expires_at: Instant
    ) -> str:
        """Return a signed token for a ServiceAccount, for some audiences and until `expires_at`.

        The token is valid only while the ServiceAccount and `bound_object`, if any, exist.
        """
        metadata, now = account["metadata"], self.clock() // SECOND
        object_references = {"namespace": metadata["namespace"], "serviceaccount": _object_reference(account)}
        if bound_object is not None:
            object_references[bound_object["kind"].lower()] = _object_reference(bound_object)
        claims = {
            "aud": list(audiences),
            "exp": expires_at // SECOND,
            "iat": now,
            "iss": ISSUER,
            "kubernetes.io": object_references,
            "nbf": now,
            "sub": service_account_username(metadata["namespace"], metadata["name"]),
        }
        return _sign_claims(self._signer, claims)

    def verify_token(self, token: str) -> VerifiedToken | None:
        """Return the user and audiences of a ServiceAccount token; None if the token is not valid."""
        claims = self._decode_claims(token)
        now = self.clock() // SECOND
        if claims is None or claims["iss"] != ISSUER or not claims["nbf"] <= now < claims["exp"]:
            return None
        object_references = claims["kubernetes.io"]
        namespace, account = object_references["namespace"], object_references["serviceaccount"]
        if not self._is_reference_valid(scheme.SERVICE_ACCOUNT, namespace, account):
            return None
        extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
        for reference_kind, kind in _BINDABLE_KINDS.items():
            if reference_kind not in object_references:
                continue
            reference = object_references[reference_kind]
            if not self._is_reference_valid(kind, namespace, reference):
                return None
            if reference_kind == "pod":
                key_prefix = "authentication.kubernetes.io/pod-"
                extra = ((f"{key_prefix}name", (reference["name"],)), (f"{key_prefix}uid", (reference["uid"],)))
        groups = (*account_groups(namespace), AUTHENTICATED_GROUP)
        user = UserInfo(service_account_username(namespace, account["name"]), groups, account["uid"], extra)
        return VerifiedToken(user, tuple(claims["aud"]))

    def _decode_claims(self, token: str) -> Mapping[str, Any] | None:
        segments = token.split(".")
        if len(segments) != 3 or len(token) > _TOKEN_LENGTH_MAX or not token.isascii():
            return None
        try:
            header, signature = _decode_json(decode_base64url(segments[0])), decode_base64url(segments[2])
            is_supported_algorithm = isinstance(header, dict) and header.get("alg") == ALGORITHM
            if not is_supported_algorithm or not self._signer.is_signed(
                f"{segments[0]}.{segments[1]}".encode(), signature
            ):
                return None
            claims: Mapping[str, Any] = _decode_json(decode_base64url(segments[1]))
        except (ValueError, msgspec.DecodeError, RecursionError):
            return None
        return claims

    def _is_reference_valid(self, kind: str, namespace: str, reference: Mapping[str, str]) -> bool:
        obj = self._objects.get(Key(kind, namespace, reference["name"]))
        if obj is None or obj["metadata"]["uid"] != reference["uid"]:
            return False
        return kind == scheme.POD or "deletionTimestamp" not in obj["metadata"]


def sign_dashboard_token(
    signer: Signer, user: UserInfo, now: Instant, expires_at: Instant, *, permits_actions: bool = False
) -> str:
    """Return a signed dashboard token of a user: for reading the dashboard, and if `permits_actions` for actions."""
    claims: dict[str, Any] = {"iss": DASHBOARD_ISSUER, "sub": user.name, "groups": list(user.groups)}
    claims |= {"nbf": now // SECOND, "exp": expires_at // SECOND}
    return _sign_claims(signer, {**claims, "actions": True} if permits_actions else claims)


def _sign_claims(signer: Signer, claims: Mapping[str, Any]) -> str:
    header = {"alg": ALGORITHM, "kid": signer.key_id}
    signing_input = f"{_encode_base64url(_encode_json(header))}.{_encode_base64url(_encode_json(claims))}"
    return f"{signing_input}.{_encode_base64url(signer.sign(signing_input.encode()))}"


def _object_reference(obj: Obj) -> dict[str, str]:
    return {"name": obj["metadata"]["name"], "uid": obj["metadata"]["uid"]}


def _encode_base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """Decode base64url without padding. Raises ValueError if the text is malformed."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
