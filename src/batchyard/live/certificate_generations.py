"""Certificates of webhooks that replace themselves: what a Secret holds of them, and what is to be done next.

A generation is an authority and the one certificate it has signed; the authority's key is thrown away. Before a
certificate ends the next generation is made, and its authority is told to whoever asks us. A while later, when all
must know it, the certificate is put in use. The authority before stays known until it has ended. So at every moment
whoever asks knows the authority of whatever certificate he is shown.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from batchyard.api.times import to_datetime
from batchyard.base.instant import HOUR, SECOND, Duration, Instant

_BEGINS_BEFORE: Final = HOUR  # clocks differ
#: For this part of its life a generation is known and not yet shown; it is begun so often as long before the end.
_SHARE: Final = 12
_BEFORE: Final = 3
_END: Final = b"-----END CERTIFICATE-----\n"


@dataclass(frozen=True, slots=True)
class Terms:
    """For whom certificates are, and for how long."""

    names: Sequence[str]
    lifetime: Duration

    @property
    def overlap(self) -> Duration:
        """How long an authority is known before its certificate is shown."""
        return self.lifetime // _SHARE


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, as PEM; empty where there is none."""

    certificate: bytes = b""
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Generations:
    """What a Secret holds."""

    #: What is shown to whoever asks.
    shown: Pair = Pair()
    following: Pair = Pair()
    #: The authorities that are to be known, as one PEM.
    authorities: bytes = b""

    def data(self) -> dict[str, str]:
        """As the data of a Secret."""
        found = {
            "tls.crt": self.shown.certificate,
            "tls.key": self.shown.key,
            "next.crt": self.following.certificate,
            "next.key": self.following.key,
            "ca.crt": self.authorities,
        }
        return {name: base64.b64encode(content).decode() for name, content in found.items()}


def generations_of(data: Mapping[str, str]) -> Generations:
    """What the data of a Secret hold."""
    found = {name: base64.b64decode(text) for name, text in data.items()}
    shown = Pair(found.get("tls.crt", b""), found.get("tls.key", b""))
    following = Pair(found.get("next.crt", b""), found.get("next.key", b""))
    return Generations(shown, following, found.get("ca.crt", b""))


def stepped(held: Generations, now: Instant, terms: Terms) -> Generations:
    """What is to be held now; the same where nothing is to be done."""
    if not _is_good(held.shown, now, terms):
        pair, authority = _made(now, terms)
        return Generations(pair, Pair(), authority + _lasting(held.authorities, now))
    if held.following.certificate:
        if now < _made_at(held.following) + terms.overlap:
            return held
        return Generations(held.following, Pair(), held.authorities)
    if now >= _ends_at(held.shown) - _BEFORE * terms.overlap:
        pair, authority = _made(now, terms)
        return Generations(held.shown, pair, authority + held.authorities)
    lasting = _lasting(held.authorities, now)
    return held if lasting == held.authorities else Generations(held.shown, Pair(), lasting)


def _is_good(pair: Pair, now: Instant, terms: Terms) -> bool:
    """Whether a certificate can be shown: it is there, has not ended, and has our names."""
    if not pair.certificate or not pair.key:
        return False
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
    except ValueError:
        return False
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return _ends_at(pair) > now and list(names.get_values_for_type(x509.DNSName)) == list(terms.names)


def _made(now: Instant, terms: Terms) -> tuple[Pair, bytes]:
    """A generation: the certificate with its key, and the authority."""
    signing, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # Each under its own name: those of two generations must not be taken for each other.
    authority = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"batchyard-webhooks-{x509.random_serial_number():x}")]
    )
    certified = (
        _begun(now, terms, authority, authority, signing.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(signing, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, terms.names[0][:64])])
    certificate = (
        _begun(now, terms, subject, authority, key.public_key())
        .add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, terms.names))), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(signing, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    written = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(certificate.public_bytes(pem), written), certified.public_bytes(pem)


def _begun(
    now: Instant, terms: Terms, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(to_datetime(now - _BEGINS_BEFORE))
        .not_valid_after(to_datetime(now + terms.lifetime))
    )


def _made_at(pair: Pair) -> Instant:
    begins = x509.load_pem_x509_certificate(pair.certificate).not_valid_before_utc
    return (int(begins.timestamp()) + 1) * SECOND + _BEGINS_BEFORE  # certificates know no parts of seconds


def _ends_at(pair: Pair) -> Instant:
    return _end_of(pair.certificate)


def _end_of(certificate: bytes) -> Instant:
    return int(x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()) * SECOND


def _lasting(bundle: bytes, now: Instant) -> bytes:
    """The certificates that have not ended."""
    parts = [part + _END for part in bundle.split(_END) if part.strip()]
    return b"".join(part for part in parts if _end_of(part) > now)
