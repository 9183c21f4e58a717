"""Webhook certificates: rotates them in a Secret that all replicas share, and keeps `caBundle` fields up to date.

Every replica reads the Secret periodically, performs the next rotation step, and serves the resulting certificate.
Optimistic concurrency resolves conflicts: a replica whose update is rejected by resourceVersion reads the Secret again.
"""

import asyncio
import base64
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from batchyard.api.meta import Obj
from batchyard.api.times import to_datetime
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant
from batchyard.client.transport import HttpAnswer, HttpRequest
from batchyard.client.writes import decoded, failure_reason
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.operator.aiohttp_transport import HttpTransport

# --- certificate generations ---
#
# The states of certificate rotation as stored in the Secret, and the next step.
#
# A generation is a CA and the one certificate that it signed. The private key of the CA is discarded. Before a
# certificate expires, the next generation is created and its CA is published in the `caBundle`. Later, when all API
# servers have it, the new certificate is served. The previous CA stays published until it expires. So clients always
# trust the CA of whatever certificate is served.


_BEGINS_BEFORE: Final = HOUR  # tolerates clock skew
#: The overlap, in which a CA is published before its certificate is served, is this fraction of the lifetime. The next
#: generation is created this many overlaps before the current one expires.
_SHARE: Final = 12
_BEFORE: Final = 3
_END: Final = b"-----END CERTIFICATE-----\n"


@dataclass(frozen=True, slots=True)
class CertificateTerms:
    """The DNS names of the certificates, and their lifetime."""

    names: Sequence[str]
    lifetime: Duration

    @property
    def overlap(self) -> Duration:
        """How long a CA is published before its certificate is served."""
        return self.lifetime // _SHARE


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate with its private key, as PEM; empty if none exists."""

    certificate: bytes = b""
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class CertificateGenerations:
    """The content of the Secret."""

    #: The certificate that is served.
    shown: CertificatePair = CertificatePair()
    following: CertificatePair = CertificatePair()
    #: The published CAs, as one PEM bundle.
    authorities: bytes = b""

    def data(self) -> dict[str, str]:
        """Return the `data` of the Secret."""
        found = {
            "tls.crt": self.shown.certificate,
            "tls.key": self.shown.key,
            "next.crt": self.following.certificate,
            "next.key": self.following.key,
            "ca.crt": self.authorities,
        }
        return {name: base64.b64encode(content).decode() for name, content in found.items()}


def generations_of(data: Mapping[str, str]) -> CertificateGenerations:
    """Parse the `data` of a Secret."""
    found = {name: base64.b64decode(text) for name, text in data.items()}
    shown = CertificatePair(found.get("tls.crt", b""), found.get("tls.key", b""))
    following = CertificatePair(found.get("next.crt", b""), found.get("next.key", b""))
    return CertificateGenerations(shown, following, found.get("ca.crt", b""))


def next_generations(held: CertificateGenerations, now: Instant, terms: CertificateTerms) -> CertificateGenerations:
    """Return the generations after the next rotation step; the same object if no step is due."""
    if not _is_good(held.shown, now, terms):
        pair, authority = _made(now, terms)
        return CertificateGenerations(pair, CertificatePair(), authority + _lasting(held.authorities, now))
    if held.following.certificate:
        if now < _made_at(held.following) + terms.overlap:
            return held
        return CertificateGenerations(held.following, CertificatePair(), held.authorities)
    if now >= _ends_at(held.shown) - _BEFORE * terms.overlap:
        pair, authority = _made(now, terms)
        return CertificateGenerations(held.shown, pair, authority + held.authorities)
    lasting = _lasting(held.authorities, now)
    return held if lasting == held.authorities else CertificateGenerations(held.shown, CertificatePair(), lasting)


def _is_good(pair: CertificatePair, now: Instant, terms: CertificateTerms) -> bool:
    """Whether a certificate can be served: it exists, has not expired, and has the required names."""
    if not pair.certificate or not pair.key:
        return False
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
    except ValueError:
        return False
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return _ends_at(pair) > now and list(names.get_values_for_type(x509.DNSName)) == list(terms.names)


def _made(now: Instant, terms: CertificateTerms) -> tuple[CertificatePair, bytes]:
    """Create a generation: a certificate with its key, and its CA."""
    signing, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # Each CA has a unique name, so that clients do not confuse those of two generations.
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
    return CertificatePair(certificate.public_bytes(pem), written), certified.public_bytes(pem)


def _begun(
    now: Instant, terms: CertificateTerms, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
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


def _made_at(pair: CertificatePair) -> Instant:
    begins = x509.load_pem_x509_certificate(pair.certificate).not_valid_before_utc
    return (int(begins.timestamp()) + 1) * SECOND + _BEGINS_BEFORE  # certificate times are in whole seconds


def _ends_at(pair: CertificatePair) -> Instant:
    return _end_of(pair.certificate)


def _end_of(certificate: bytes) -> Instant:
    return int(x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()) * SECOND


def _lasting(bundle: bytes, now: Instant) -> bytes:
    """Return the certificates of a bundle that have not expired."""
    parts = [part + _END for part in bundle.split(_END) if part.strip()]
    return b"".join(part for part in parts if _end_of(part) > now)


#: The maximum interval between checks of the Secret, and the minimum number of checks within an overlap.
_EVERY: Final = MINUTE
_LOOKS_IN_OVERLAP: Final = 6
_REGISTRATIONS: Final = "/apis/admissionregistration.k8s.io/v1"
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_encode: Final = msgspec.json.Encoder().encode


class CertificateTargets(NamedTuple):
    """The Secret of the certificates, and the objects whose `caBundle` is kept up to date."""

    namespace: str
    secret: str
    #: The name of the webhooks' Service, and of both webhook configurations.
    service: str
    #: The CustomResourceDefinitions with a conversion webhook.
    definitions: Sequence[str]
    terms: CertificateTerms


class CertificateKeeper:
    """The certificate that is served, and the errors reported. `context` always serves the current certificate."""

    def __init__(self, kept: CertificateTargets, wire: HttpTransport, report: Callable[[str], None]) -> None:
        self._kept = kept
        self._wire = wire
        self._report = report
        self._shown = CertificatePair()
        #: The reported errors that may still last.
        self._troubles: dict[str, None] = {}
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        #: Whether a certificate is served whose CA is published everywhere.
        self.is_ready = False

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Rotate the certificates while the context is entered, after a first check."""
        await self._look()
        task = asyncio.create_task(self._go_on())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def every(self) -> Duration:
        """The interval between checks."""
        return min(_EVERY, self._kept.terms.overlap // _LOOKS_IN_OVERLAP)

    async def _go_on(self) -> None:
        while True:
            over = asyncio.Event()
            wait = self.every if self.is_ready else min(self.every, SECOND)
            asyncio.get_running_loop().call_later(wait / SECOND, over.set)
            await over.wait()
            await self._look()

    async def _look(self) -> None:
        held = await self._settled()
        if held is None:
            return
        published = [await self._inject(path, held.authorities) for path in self._places()]
        if held.shown != self._shown:
            with _file(held.shown.certificate + held.shown.key) as path:
                self.context.load_cert_chain(path)
            self._shown = held.shown
        self.is_ready = all(published)
        if self.is_ready and self._troubles:
            self._troubles.clear()
            self._report("batchyard: webhooks: certificates: recovered")

    async def _settled(self) -> CertificateGenerations | None:
        """Perform the next rotation step, and return the resulting generations; None on errors."""
        kept = self._kept
        place = f"/api/v1/namespaces/{kept.namespace}/secrets"
        answer = await self._wire.ask(HttpRequest("GET", f"{place}/{kept.secret}"))
        if answer.code not in {200, 404}:
            self._troubled(answer)
            return None
        secret = decoded(answer.body) if answer.code == 200 else {}
        held = generations_of(secret.get("data") or {})
        wanted = next_generations(held, answer.server_time or wall_clock(), kept.terms)
        if wanted is held:
            return held
        body = _encode(_secret(secret, kept, wanted))
        request = HttpRequest("PUT", f"{place}/{kept.secret}", body) if secret else HttpRequest("POST", place, body)
        answer = await self._wire.ask(request)
        if answer.code in {200, 201}:
            return wanted
        if answer.code == 409:
            return await self._settled()
        self._troubled(answer)
        return None

    def _places(self) -> Iterator[str]:
        name = self._kept.service
        yield f"{_REGISTRATIONS}/mutatingwebhookconfigurations/{name}"
        yield f"{_REGISTRATIONS}/validatingwebhookconfigurations/{name}"
        for definition in self._kept.definitions:
            yield f"{_DEFINITIONS}/{definition}"

    async def _inject(self, path: str, authorities: bytes) -> bool:
        """Publish the CAs in an object. Return whether it has them; True if it does not exist, since it needs none."""
        answer = await self._wire.ask(HttpRequest("GET", path))
        if answer.code == 404:
            return True
        if answer.code != 200:
            self._troubled(answer)
            return False
        found = decoded(answer.body)
        service = {"namespace": self._kept.namespace, "name": self._kept.service}
        wanted = with_authorities(found, base64.b64encode(authorities).decode(), service)
        if wanted == found:
            return True
        answer = await self._wire.ask(HttpRequest("PUT", path, _encode(wanted)))
        if answer.code == 409:  # another replica updated it first: read it again
            return await self._inject(path, authorities)
        if answer.code != 200:
            self._troubled(answer)
        return answer.code == 200

    def _troubled(self, answer: HttpAnswer) -> None:
        trouble = failure_reason(answer)
        if trouble not in self._troubles:
            self._troubles[trouble] = None
            self._report(f"batchyard: webhooks: certificates: {trouble}")


def with_authorities(obj: Mapping[str, Any], bundle: str, service: Mapping[str, str]) -> Obj:
    """Return a webhook configuration, or a definition with a conversion webhook, with this CA bundle.

    Webhooks of another Service keep their bundle, because they belong to another program such as Kueue.
    """
    if "webhooks" in obj:
        hooks = [{**hook, "clientConfig": _trusting(hook["clientConfig"], bundle, service)} for hook in obj["webhooks"]]
        return {**obj, "webhooks": hooks}
    converting = obj.get("spec", {}).get("conversion") or {}
    if converting.get("strategy") != "Webhook":
        return obj  # it has no conversion webhook
    webhook = converting["webhook"]
    client = _trusting(webhook["clientConfig"], bundle, service)
    conversion = {**converting, "webhook": {**webhook, "clientConfig": client}}
    return {**obj, "spec": {**obj["spec"], "conversion": conversion}}


def _trusting(client: Mapping[str, Any], bundle: str, service: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the client configuration of a webhook, with the bundle if it refers to the Service."""
    reached = client.get("service") or {}
    is_ours = all(reached.get(field) == value for field, value in service.items())
    return {**client, "caBundle": bundle} if is_ours else client


def _secret(found: Mapping[str, Any], kept: CertificateTargets, held: CertificateGenerations) -> Obj:
    metadata = found.get("metadata") or {"name": kept.secret, "namespace": kept.namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": held.data()}


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[Path]:
    """Yield the path of a file in memory: the root file system may be read-only, and keys must not be on disk."""
    number = os.memfd_create("certificate")
    try:
        os.write(number, content)
        yield Path(f"/proc/self/fd/{number}")
    finally:
        os.close(number)
