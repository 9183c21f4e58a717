"""Webhook server of an operator: admission and conversion over HTTPS on every replica, and certificate rotation."""

import asyncio
import base64
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeAlias

import msgspec
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, Selector
from batchyard.api.scheme import kind_info
from batchyard.api.times import to_datetime
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant
from batchyard.client.transport import HttpAnswer, HttpRequest, decoded, failure_reason, path_of, received
from batchyard.metrics.forks import WebhookMetrics
from batchyard.server.clocks.wall import ticks, wall_clock
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.webhooks.hooks import (
    CONVERT,
    MUTATE,
    VALIDATE,
    FetchedObjects,
    InvalidReview,
    ObjectNotFetched,
    ObjectQuery,
    converted,
    mutated,
    namespace_of,
    validated,
)

# --- certificate generations ---
#
# The states of certificate rotation as stored in the Secret, and the next step.
#
# A generation is a CA and the one certificate that it signed. The private key of the CA is discarded. Before a
# certificate expires, the next generation is created and its CA is published in the `caBundle`. Later, when all API
# servers have it, the new certificate is served. The previous CA stays published until it expires. So clients always
# trust the CA of the served certificate.


_BEGINS_BEFORE: Final = HOUR  # tolerates clock skew
#: A CA is published before its certificate is served, for an overlap of 1/_SHARE of the lifetime. The next generation
#: is created _BEFORE overlaps before the current one expires.
_SHARE: Final = 12
_BEFORE: Final = 3
_END: Final = b"-----END CERTIFICATE-----\n"


@dataclass(frozen=True, slots=True)
class CertificateTerms:
    """The required DNS names of webhook certificates, and their lifetime."""

    names: Sequence[str]
    lifetime: Duration

    @property
    def overlap(self) -> Duration:
        """How long a CA is published before its certificate is served, in microseconds."""
        return self.lifetime // _SHARE


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate with its private key, as PEM; empty if none exists."""

    certificate: bytes = b""
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class CertificateGenerations:
    """The certificate generations stored in the Secret: the served one, the next one, and the published CAs."""

    #: The certificate that is served.
    shown: CertificatePair = CertificatePair()
    following: CertificatePair = CertificatePair()
    #: The published CAs, as one PEM bundle.
    authorities: bytes = b""

    def data(self) -> dict[str, str]:
        """Return the generations as the `data` of a Secret."""
        found = {
            "tls.crt": self.shown.certificate,
            "tls.key": self.shown.key,
            "next.crt": self.following.certificate,
            "next.key": self.following.key,
            "ca.crt": self.authorities,
        }
        return {name: base64.b64encode(content).decode() for name, content in found.items()}


def generations_of(data: Mapping[str, str]) -> CertificateGenerations:
    """Parse certificate generations from the `data` of a Secret."""
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
    """Report whether a certificate can be served: it exists, has not expired, and has the required names."""
    if not pair.certificate or not pair.key:
        return False
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
    except ValueError:
        return False
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return _ends_at(pair) > now and list(names.get_values_for_type(x509.DNSName)) == list(terms.names)


def _made(now: Instant, terms: CertificateTerms) -> tuple[CertificatePair, bytes]:
    """Create a certificate generation: a certificate with its key, and the certificate of its CA."""
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
    """Return a PEM bundle without its expired certificates."""
    parts = [part + _END for part in bundle.split(_END) if part.strip()]
    return b"".join(part for part in parts if _end_of(part) > now)


# --- webhook certificates ---
#
# Rotates the webhook certificates in a Secret that all replicas share, and keeps `caBundle` fields up to date.
#
# Every replica reads the Secret periodically, performs the next rotation step, and serves the resulting certificate.
# Optimistic concurrency resolves conflicts: a replica whose update is rejected by resourceVersion reads the Secret
# again.


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
    """Rotates the webhook certificates in the Secret, and publishes their CAs in `caBundle` fields.

    `context` is a TLS context that always serves the current certificate.
    """

    def __init__(self, kept: CertificateTargets, wire: HttpTransport, report: Callable[[str], None]) -> None:
        self._kept = kept
        self._wire = wire
        self._report = report
        self._shown = CertificatePair()
        #: The errors that were reported and may still last.
        self._troubles: dict[str, None] = {}
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        #: Whether a certificate is served whose CA is published everywhere.
        self.is_ready = False

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Check the certificates, then rotate them in the background while the context manager is entered."""
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
        """The interval between checks of the Secret."""
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
            self._report("batchyard: webhook certificates: the checks succeed again")

    async def _settled(self) -> CertificateGenerations | None:
        """Perform the next rotation step in the Secret, and return the resulting generations; None on errors."""
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
        """Write the CA bundle into an object at a URL path. Return whether it has it, or does not exist."""
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
            self._report(f"batchyard: webhook certificates cannot be checked or published: {trouble}")


def with_authorities(obj: Mapping[str, Any], bundle: str, service: Mapping[str, str]) -> Obj:
    """Return a webhook configuration, or a CustomResourceDefinition with a conversion webhook, with this CA bundle.


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
    """Return a webhook's `clientConfig`, with the CA bundle if it refers to this Service."""
    reached = client.get("service") or {}
    is_ours = all(reached.get(field) == value for field, value in service.items())
    return {**client, "caBundle": bundle} if is_ours else client


def _secret(found: Mapping[str, Any], kept: CertificateTargets, held: CertificateGenerations) -> Obj:
    metadata = found.get("metadata") or {"name": kept.secret, "namespace": kept.namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": held.data()}


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[Path]:
    """Yield the path of an in-memory file with this content, so that private keys are not written to disk."""
    number = os.memfd_create("certificate")
    try:
        os.write(number, content)
        yield Path(f"/proc/self/fd/{number}")
    finally:
        os.close(number)


# --- webhook server ---


#: An object is at most 1.5 MiB. A review has two of them, and a conversion has a page of a list.
_BODY_MAX: Final = 64 * 1024 * 1024
_ENDS_WITHIN: Final = 5.0  # seconds
#: The maximum number of lookups for a review, and the time limit of each.
_LOOKUPS_MAX: Final = 8
_LOOKS_UP_WITHIN: Final[Duration] = 5 * SECOND
Answering: TypeAlias = Callable[[web.Request], Awaitable[web.Response]]


class WebhookTerms(NamedTuple):
    """The options of the webhooks; port 0 disables them."""

    port: int = 0
    #: The name of the Service, and of both webhook configurations.
    service: str = ""
    #: The Secret of the certificates.
    secret: str = ""
    lifetime: Duration = 0
    definitions: Sequence[str] = ()
    #: Selects the Namespaces whose jobs are managed; None selects all.
    managed_namespaces: Selector | None = None


class LookupFailed(Exception):  # noqa: N818 - named for the event
    """The API server did not return an object on which an admission review depends."""


class Webhooks:
    """The HTTPS server of the webhooks, which runs while its context manager is entered."""

    def __init__(self, terms: WebhookTerms, groups: Sequence[str], wire: HttpTransport, place: tuple[str, str]) -> None:
        self._terms = terms
        self._groups = groups
        self._wire = wire
        self._address, self._namespace = place
        self._report: Callable[[str], None] = _ignore_line
        self._figures = WebhookMetrics(ticks)
        self._keeper: CertificateKeeper | None = None
        self._runner: web.AppRunner | None = None

    def reporting_to(self, report: Callable[[str], None]) -> Self:
        """Set the function that reports errors; return this object."""
        self._report = report
        return self

    def texts(self) -> Iterator[str]:
        """Yield the metrics of the webhooks; none if they are disabled."""
        return self._figures.texts()

    @property
    def is_ready(self) -> bool:
        """Whether the webhooks are disabled, or a certificate is served whose CA is published."""
        return self._keeper is None or self._keeper.is_ready

    async def __aenter__(self) -> Self:
        terms = self._terms
        if not terms.port:
            return self
        names = [f"{terms.service}.{self._namespace}{domain}" for domain in (".svc", ".svc.cluster.local", "")]
        kept = CertificateTargets(
            self._namespace, terms.secret, terms.service, terms.definitions, CertificateTerms(names, terms.lifetime)
        )
        self._keeper = CertificateKeeper(kept, self._wire, self._report)
        self._keeping = self._keeper.keeping()
        await self._keeping.__aenter__()
        app = web.Application(client_max_size=_BODY_MAX)
        answers = {MUTATE: self._mutate, VALIDATE: self._validate, CONVERT: _convert}
        self._figures.expect(answers)
        app.add_routes(web.post(path, self._counted(path, answer)) for path, answer in answers.items())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_ENDS_WITHIN)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address, terms.port, ssl_context=self._keeper.context).start()
        self._report(f"batchyard: webhooks at https://{self._address}:{terms.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            await self._keeping.__aexit__(None, None, None)

    def _counted(self, path: str, answer: Answering) -> Answering:
        async def counted(request: web.Request) -> web.Response:
            return await self._figures.counted(path, answer(request), lambda response: response.status)

        return counted

    async def _mutate(self, request: web.Request) -> web.Response:
        return await self._answered(request, partial(mutated, managed=self._terms.managed_namespaces))

    async def _validate(self, request: web.Request) -> web.Response:
        return await self._answered(request, validated)

    async def _answered(
        self, request: web.Request, answer: Callable[[Mapping[str, Any], Sequence[str], FetchedObjects], Obj]
    ) -> web.Response:
        review = decoded(await request.read())
        known: dict[ObjectQuery, Sequence[Obj]] = {}
        try:
            for _ in range(_LOOKUPS_MAX):
                try:
                    return _sent(answer(review, self._groups, FetchedObjects(namespace_of(review), known)))
                except ObjectNotFetched as unknown:
                    known[unknown.question] = await self._looked_up(unknown.question)
        except InvalidReview as wrong:
            return web.Response(status=400, text=str(wrong))
        except LookupFailed as failed:
            return web.Response(status=500, text=f"looking up a referenced object failed: {failed}")
        return web.Response(status=500, text="the review depends on too many other objects")

    async def _looked_up(self, question: ObjectQuery) -> Sequence[Obj]:
        """Look up objects by listing with a selector, because the operator's role always allows to list."""
        kind = scheme.POD if question.owner else question.key.kind
        info = kind_info(kind)
        selector = f"fieldSelector=metadata.name={question.key.name}"
        if question.owner:
            selector = f"labelSelector={well_known.CONTROLLER_UID}={question.owner}"
        place = path_of(info, info.storage_version, question.key.namespace)
        answer = await self._wire.ask_patiently(HttpRequest("GET", f"{place}?{selector}", within=_LOOKS_UP_WITHIN))
        if answer.code == 404:  # the kind is not served
            return []
        if answer.code != 200:
            raise LookupFailed(failure_reason(answer))
        items = decoded(answer.body).get("items") or ()
        return [received(info, info.storage_version, item) for item in items]


async def _convert(request: web.Request) -> web.Response:
    try:
        return _sent(converted(decoded(await request.read())))
    except InvalidReview as wrong:
        return web.Response(status=400, text=str(wrong))


def _sent(review: Obj) -> web.Response:
    return web.Response(body=_encode(review), content_type="application/json")


def _ignore_line(_line: str) -> None:
    pass
