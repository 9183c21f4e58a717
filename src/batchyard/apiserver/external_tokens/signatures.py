"""Verification of JSON Web Signatures in compact form, with the public keys of a JSON Web Key Set.

Only asymmetric algorithms are accepted, and each key verifies only the algorithms of its type, so that a token cannot
select how it is verified. Keys in the header of a token (`jwk`, `jku`, `x5c`) are never used.
Sources: RFC 7515, 7517, 7518, 8725; github.com/coreos/go-oidc (remote key set).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from batchyard.apiserver.auth.tokens import decode_base64url

PublicKey: TypeAlias = rsa.RSAPublicKey | ec.EllipticCurvePublicKey
TOKEN_LENGTH_MAX: Final = 16 * 1024
_HASHES: Final[Mapping[str, hashes.HashAlgorithm]] = {
    "256": hashes.SHA256(),
    "384": hashes.SHA384(),
    "512": hashes.SHA512(),
}
#: The algorithms by the type of their keys.
_RSA_ALGORITHMS: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES: Final[Mapping[str, tuple[str, ec.EllipticCurve]]] = {
    "ES256": ("P-256", ec.SECP256R1()),
    "ES384": ("P-384", ec.SECP384R1()),
    "ES512": ("P-521", ec.SECP521R1()),
}
_RSA_BITS_MIN: Final = 2048
_RSA_BITS_MAX: Final = 16384
_KEYS_MAX: Final = 100
_decode_json = msgspec.json.Decoder(strict=True).decode


class TokenRejected(Exception):  # noqa: N818 - named after the condition
    """A token is not valid; the message says why, for the log of the server."""


class UnknownKey(TokenRejected):
    """No known key verifies the token; the issuer may have a new key."""


class VerificationKey(NamedTuple):
    """A public key of an issuer, with its ID ('' if it has none) and the only algorithm it is for ('' if any)."""

    key_id: str
    algorithm: str
    key: PublicKey


class SignedToken(NamedTuple):
    """The parts of a token: its header and claims, and the signed bytes with their signature. Nothing is verified."""

    header: Mapping[str, Any]
    unverified_claims: Mapping[str, Any]
    message: bytes
    signature: bytes


def parse_token(token: str) -> SignedToken:
    """Split a token in compact form. Raises TokenRejected if it is malformed."""
    segments = token.split(".")
    if len(segments) != 3 or len(token) > TOKEN_LENGTH_MAX or not token.isascii():
        raise TokenRejected("malformed token")
    try:
        header, claims = (_decode_json(decode_base64url(segment)) for segment in segments[:2])
        signature = decode_base64url(segments[2])
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise TokenRejected("malformed token") from error
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise TokenRejected("malformed token")
    return SignedToken(header, claims, f"{segments[0]}.{segments[1]}".encode(), signature)


def verify_signature(token: SignedToken, keys: Sequence[VerificationKey]) -> None:
    """Verify the signature of a token with one of the keys.

    Raises TokenRejected if its algorithm is not supported, and UnknownKey if no key verifies it.
    """
    algorithm, key_id = token.header.get("alg"), token.header.get("kid", "")
    if not isinstance(algorithm, str) or (algorithm not in _RSA_ALGORITHMS and algorithm not in _CURVES):
        raise TokenRejected(f"unsupported signature algorithm {algorithm!r}")
    if "crit" in token.header:
        raise TokenRejected("unsupported critical header parameters")
    for key in keys:
        is_candidate = not key_id or key.key_id == key_id
        if is_candidate and key.algorithm in ("", algorithm) and _is_signed(token, algorithm, key.key):
            return
    raise UnknownKey("failed to verify id token signature")


def parse_key_set(document: bytes) -> list[VerificationKey]:
    """Return the usable keys of a JSON Web Key Set; other keys are ignored. Raises ValueError if it is malformed."""
    try:
        key_set = _decode_json(document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the key set is not JSON: {error}") from error
    entries = key_set.get("keys") if isinstance(key_set, dict) else None
    if not isinstance(entries, list):
        raise ValueError("the key set has no list of keys")  # noqa: TRY004 - as for malformed JSON
    keys = []
    for entry in entries[:_KEYS_MAX]:
        key = _parse_key(entry) if isinstance(entry, dict) and entry.get("use", "sig") == "sig" else None
        if key is not None:
            keys.append(VerificationKey(str(entry.get("kid") or ""), str(entry.get("alg") or ""), key))
    return keys


def _parse_key(entry: Mapping[str, Any]) -> PublicKey | None:
    try:
        if entry.get("kty") == "RSA":
            modulus, exponent = _integer(entry["n"]), _integer(entry["e"])
            is_usable = _RSA_BITS_MIN <= modulus.bit_length() <= _RSA_BITS_MAX
            return rsa.RSAPublicNumbers(exponent, modulus).public_key() if is_usable else None
        if entry.get("kty") == "EC":
            curve = next((curve for name, curve in _CURVES.values() if name == entry.get("crv")), None)
            numbers = (_integer(entry["x"]), _integer(entry["y"]))
            return None if curve is None else ec.EllipticCurvePublicNumbers(*numbers, curve).public_key()
    except (KeyError, ValueError, TypeError):
        return None
    return None


def _is_signed(token: SignedToken, algorithm: str, key: PublicKey) -> bool:
    digest = _HASHES[algorithm[2:]]
    try:
        if algorithm in _RSA_ALGORITHMS and isinstance(key, rsa.RSAPublicKey):
            is_plain = algorithm.startswith("RS")
            scheme = padding.PKCS1v15() if is_plain else padding.PSS(padding.MGF1(digest), padding.PSS.DIGEST_LENGTH)
            key.verify(token.signature, token.message, scheme, digest)
            return True
        if algorithm in _CURVES and isinstance(key, ec.EllipticCurvePublicKey):
            return _is_signed_on_curve(token, algorithm, key, digest)
    except InvalidSignature:
        return False
    return False


def _is_signed_on_curve(
    token: SignedToken, algorithm: str, key: ec.EllipticCurvePublicKey, digest: hashes.HashAlgorithm
) -> bool:
    size = (key.curve.key_size + 7) // 8
    if key.curve.name != _CURVES[algorithm][1].name or len(token.signature) != 2 * size:
        return False
    r, s = (int.from_bytes(part, "big") for part in (token.signature[:size], token.signature[size:]))
    key.verify(encode_dss_signature(r, s), token.message, ec.ECDSA(digest))
    return True


def _integer(text: Any) -> int:
    if not isinstance(text, str):
        raise TypeError("a number of a key must be a string")
    return int.from_bytes(decode_base64url(text), "big")
