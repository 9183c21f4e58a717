"""Tokens of ServiceAccounts: JSON web tokens that the platform signs, and reads again.

A token is good for its audiences, until its time is over, and only while the ServiceAccount it was made for, and the
pod or Secret it is bound to, are still there. It is read by people and programs outside, so its time is that of the
clock, however fast the platform's runs. Sources: Kubernetes's pkg/serviceaccount/{claims,jwt}.go and
pkg/registry/core/serviceaccount/storage/token.go.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.auth.authentication import AUTHENTICATED, User, account_groups, account_name
from batchyard.apiserver.objects import Found
from batchyard.base.instant import SECOND, Instant

#: Who signs, and for whom a token is that does not say otherwise.
ISSUER: Final = "https://kubernetes.default.svc"
#: Who signs what is for the page alone.
PAGE: Final = "https://batchyard.dev/page"
ALGORITHM: Final = "ES256"
_BOUND: Final[Mapping[str, str]] = {"pod": scheme.POD, "secret": scheme.SECRET}
_LENGTH_MAX: Final = 16 * 1024
_decode = msgspec.json.Decoder(strict=True).decode
_encode = msgspec.json.Encoder().encode


class Signer(Protocol):
    """A key that signs, and knows its own signatures."""

    @property
    def key_id(self) -> str:
        """Which key it is."""

    def sign(self, message: bytes) -> bytes:
        """The signature of a message."""

    def is_signed(self, message: bytes, signature: bytes) -> bool:
        """Whether that is the signature of a message."""


class Verified(NamedTuple):
    """What a token says, and is good for now."""

    user: User
    audiences: tuple[str, ...]


class Tokens:
    """See the module."""

    def __init__(self, objects: Found, signer: Signer, clock: Callable[[], Instant]) -> None:
        self._objects = objects
        self._signer = signer
        self.clock = clock

    def user_of(self, token: str) -> User | None:
        """The user of a token that is good here; None where it is not."""
        verified = self.verified(token)
        return verified.user if verified is not None and ISSUER in verified.audiences else None

    def looker_of(self, token: str) -> User | None:
        """The user of a token that was made for looking at the page; None of any other, and once its time is over."""
        claims, now = self._signed_claims(token), self.clock() // SECOND
        if claims is None or claims["iss"] != PAGE or not claims["nbf"] <= now < claims["exp"]:
            return None
        return User(claims["sub"], (*claims["groups"], AUTHENTICATED))

    def issue(self, account: Obj, bound: Obj | None, audiences: Sequence[str], expires_at: Instant) -> str:
        """A token for a ServiceAccount, good as long as the object it is bound to is there too."""
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
        """What a token says; None where it is not ours, not good now, or for what is no longer there."""
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
        user = User(account_name(namespace, account["name"]), groups, account["uid"], extra)
        return Verified(user, tuple(claims["aud"]))

    def _signed_claims(self, token: str) -> Mapping[str, Any] | None:
        """The claims of a token that we have signed; None of any other."""
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
        """Whether an object is there, still the same, and not about to go; a pod may end its work."""
        found = self._objects.get(Key(kind, namespace, reference["name"]))
        if found is None or found["metadata"]["uid"] != reference["uid"]:
            return False
        return kind == scheme.POD or "deletionTimestamp" not in found["metadata"]


def page_token(signer: Signer, user: str, groups: Sequence[str], now: Instant, expires_at: Instant) -> str:
    """A token with which a browser may look at the page as somebody, and do nothing else, until then."""
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
    """The content of a part; ValueError if it is none."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
