"""ServiceAccount tokens: JSON Web Tokens that the platform signs and verifies.

A token is valid for its audiences until it expires, while its ServiceAccount and the pod or Secret it is bound to
exist. External clients read its times, so it uses the wall clock, not the platform's time. Sources: Kubernetes's
pkg/serviceaccount/{claims,jwt}.go and
pkg/registry/core/serviceaccount/storage/token.go.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.request import AUTHENTICATED, UserInfo, account_groups, account_name
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import ObjectReader

#: The issuer of ServiceAccount tokens, and their default audience.
ISSUER: Final = "https://kubernetes.default.svc"
#: The issuer of tokens for the dashboard.
PAGE: Final = "https://batchyard.dev/page"
ALGORITHM: Final = "ES256"
_BOUND: Final[Mapping[str, str]] = {"pod": scheme.POD, "secret": scheme.SECRET}
_LENGTH_MAX: Final = 16 * 1024
_decode = msgspec.json.Decoder(strict=True).decode
_encode = msgspec.json.Encoder().encode


class Signer(Protocol):
    """A key that signs messages and verifies its own signatures."""

    @property
    def key_id(self) -> str:
        """The key ID."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message."""

    def is_signed(self, message: bytes, signature: bytes) -> bool:
        """Report whether a signature is that of a message."""


class Verified(NamedTuple):
    """The user and the audiences of a valid token."""

    user: UserInfo
    audiences: tuple[str, ...]


class Tokens:
    """Issues and verifies tokens."""

    def __init__(self, objects: ObjectReader, signer: Signer, clock: Callable[[], Instant]) -> None:
        self._objects = objects
        self._signer = signer
        self.clock = clock

    def user_of(self, token: str) -> UserInfo | None:
        """Return the user of a token that is valid for this server; None if it is not."""
        verified = self.verified(token)
        return verified.user if verified is not None and ISSUER in verified.audiences else None

    def page_user_of(self, token: str) -> UserInfo | None:
        """Return the user of a page token; None for any other token or an expired one."""
        claims, now = self._signed_claims(token), self.clock() // SECOND
        if claims is None or claims["iss"] != PAGE or not claims["nbf"] <= now < claims["exp"]:
            return None
        return UserInfo(claims["sub"], (*claims["groups"], AUTHENTICATED))

    def issue(self, account: Obj, bound: Obj | None, audiences: Sequence[str], expires_at: Instant) -> str:
        """Issue a token for a ServiceAccount, valid while the object it is bound to exists."""
        metadata, now = account["metadata"], self.clock() // SECOND
        named = {"namespace": metadata["namespace"], "serviceaccount": _reference(account)}
        if bound is not None:
            named[bound["kind"].lower()] = _reference(bound)
        claims = {
            "aud": list(audiences),
            "exp": expires_at // SECOND,
            "iat": now,
            "iss": ISSUER,
            "kubernetes.io": named,
            "nbf": now,
            "sub": account_name(metadata["namespace"], metadata["name"]),
        }
        return _signed(self._signer, claims)

    def verified(self, token: str) -> Verified | None:
        """Verify a token; None if the signature, the times or the referenced objects are not valid."""
        claims = self._signed_claims(token)
        now = self.clock() // SECOND
        if claims is None or claims["iss"] != ISSUER or not claims["nbf"] <= now < claims["exp"]:
            return None
        named = claims["kubernetes.io"]
        namespace, account = named["namespace"], named["serviceaccount"]
        if not self._is_there(scheme.SERVICE_ACCOUNT, namespace, account):
            return None
        extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
        for part, kind in _BOUND.items():
            if part not in named:
                continue
            if not self._is_there(kind, namespace, named[part]):
                return None
            if part == "pod":
                about = "authentication.kubernetes.io/pod-"
                extra = ((f"{about}name", (named[part]["name"],)), (f"{about}uid", (named[part]["uid"],)))
        groups = (*account_groups(namespace), AUTHENTICATED)
        user = UserInfo(account_name(namespace, account["name"]), groups, account["uid"], extra)
        return Verified(user, tuple(claims["aud"]))

    def _signed_claims(self, token: str) -> Mapping[str, Any] | None:
        """Return the claims of a token that this platform signed; None for any other."""
        parts = token.split(".")
        if len(parts) != 3 or len(token) > _LENGTH_MAX or not token.isascii():
            return None
        try:
            header, signature = _decode(_bytes_of(parts[0])), _bytes_of(parts[2])
            is_ours = isinstance(header, dict) and header.get("alg") == ALGORITHM
            if not is_ours or not self._signer.is_signed(f"{parts[0]}.{parts[1]}".encode(), signature):
                return None
            claims: Mapping[str, Any] = _decode(_bytes_of(parts[1]))
        except (ValueError, msgspec.DecodeError, RecursionError):
            return None
        return claims

    def _is_there(self, kind: str, namespace: str, reference: Mapping[str, str]) -> bool:
        """Report whether an object with the same UID exists and is not being deleted; pods may be terminating."""
        found = self._objects.get(Key(kind, namespace, reference["name"]))
        if found is None or found["metadata"]["uid"] != reference["uid"]:
            return False
        return kind == scheme.POD or "deletionTimestamp" not in found["metadata"]


def page_token(signer: Signer, user: str, groups: Sequence[str], now: Instant, expires_at: Instant) -> str:
    """Return a token with which a browser can only read the dashboard as a user, until `expires_at`."""
    times = {"nbf": now // SECOND, "exp": expires_at // SECOND}
    return _signed(signer, {"iss": PAGE, "sub": user, "groups": list(groups), **times})


def _signed(signer: Signer, claims: Mapping[str, Any]) -> str:
    header = {"alg": ALGORITHM, "kid": signer.key_id}
    message = f"{_text_of(_encode(header))}.{_text_of(_encode(claims))}"
    return f"{message}.{_text_of(signer.sign(message.encode()))}"


def _reference(obj: Obj) -> dict[str, str]:
    return {"name": obj["metadata"]["name"], "uid": obj["metadata"]["uid"]}


def _text_of(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _bytes_of(text: str) -> bytes:
    """Decode a base64url part; raises ValueError if it is malformed."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
