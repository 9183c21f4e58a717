"""Keys, tokens and configurations of an issuer for tests."""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

URL = "https://issuer.example"
NOW = 1_000_000
CLAIMS = {"iss": URL, "aud": "batch", "sub": "ada", "exp": NOW + 100, "groups": ["a", "b"]}
_HASHES = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}


@cache
def rsa_key(name: str = "a") -> rsa.RSAPrivateKey:
    """An RSA key, one per name."""
    return rsa.generate_private_key(65537, 2048)


@cache
def curve_key() -> ec.EllipticCurvePrivateKey:
    """A key on the curve P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def encode(content: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def number(value: int) -> str:
    """A number of a key."""
    return encode(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def key_set(*names: str) -> bytes:
    """The key set of the RSA keys with these names as IDs, and of the curve's key."""
    entries = []
    for name in names:
        numbers = rsa_key(name).public_key().public_numbers()
        entries.append({"kty": "RSA", "kid": name, "use": "sig", "n": number(numbers.n), "e": number(numbers.e)})
    point = curve_key().public_key().public_numbers()
    entries.append({"kty": "EC", "crv": "P-256", "kid": "ec", "x": number(point.x), "y": number(point.y)})
    return msgspec.json.encode({"keys": entries})


def token(algorithm: str = "RS256", key: str = "a", header: Mapping[str, Any] | None = None, **claims: Any) -> str:
    """A token; a claim None is left out."""
    all_claims = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    parts = ({"alg": algorithm, "kid": "ec" if algorithm == "ES256" else key, **(header or {})}, all_claims)
    message = ".".join(encode(msgspec.json.encode(part)) for part in parts)
    return f"{message}.{encode(_signature(algorithm, key, message.encode()))}"


def _signature(algorithm: str, key: str, message: bytes) -> bytes:
    digest = _HASHES.get(algorithm[2:], hashes.SHA256())
    if algorithm.startswith("RS"):
        return rsa_key(key).sign(message, padding.PKCS1v15(), digest)
    if algorithm.startswith("PS"):
        scheme = padding.PSS(padding.MGF1(digest), padding.PSS.DIGEST_LENGTH)
        return rsa_key(key).sign(message, scheme, digest)
    if algorithm == "ES256":
        r, s = decode_dss_signature(curve_key().sign(message, ec.ECDSA(digest)))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")
    if algorithm == "HS256":  # with the public key as the secret: algorithm confusion
        encoding = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        return hmac.new(rsa_key(key).public_key().public_bytes(*encoding), message, hashlib.sha256).digest()
    return b""


def configuration(url: str = URL, **fields: Any) -> dict[str, Any]:
    """An AuthenticationConfiguration with one issuer."""
    mappings = {"username": {"claim": "sub", "prefix": "x:"}, "groups": {"claim": "groups", "prefix": "g:"}}
    issuer = {"url": url, "audiences": ["batch"], **fields.pop("issuer", {})}
    jwt = {"issuer": issuer, "claimMappings": {**mappings, **fields.pop("claimMappings", {})}, **fields}
    kind = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration"}
    return {**kind, "jwt": [jwt]}
