"""Webhook server of an operator: admission and conversion webhooks on every replica, and certificate rotation."""

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
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from batchyard.admission_plugins.built_in import ALL_QUEUED_JOBS, ManagedJobs
from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.api.times import to_datetime
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant
from batchyard.client import transport
from batchyard.metrics.forks import WebhookMetrics
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules
from batchyard.server.clocks.wall import monotonic_seconds, wall_clock
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.operator.dashboard import start_site
from batchyard.webhooks.hooks import (
    CONVERT_PATH,
    MUTATE_PATH,
    VALIDATE_PATH,
    FetchedObjects,
    InvalidReview,
    ObjectNotFetched,
    ObjectQuery,
    review_conversion,
    review_mutation,
    review_validation,
)

# The states of certificate rotation as stored in the Secret, and the next step.
#
# A generation is a CA and the one certificate that it signed. The private key of the CA is discarded. Before a
# certificate expires, the next generation is created and its CA is published in the `caBundle`. Later, when all API
# servers have it, the new certificate is served. The previous CA stays published until it expires. So clients always
# trust the CA of the served certificate.


_BACKDATED_VALIDITY: Final = HOUR  # tolerates clock skew
#: A CA is published before its certificate is served, for an overlap: the lifetime / _OVERLAP_DIVISOR. The next
#: generation is created _OVERLAPS_BEFORE_EXPIRY overlaps before the current one expires.
_OVERLAP_DIVISOR: Final = 12
_OVERLAPS_BEFORE_EXPIRY: Final = 3
_PEM_END: Final = b"-----END CERTIFICATE-----\n"


@dataclass(frozen=True, slots=True)
class CertificateRequirements:
    """The DNS names that a webhook certificate must have, and its lifetime."""

    names: Sequence[str]
    lifetime: Duration

    @property
    def overlap(self) -> Duration:
        """How long a new CA is published before its certificate is served, in microseconds."""
        return self.lifetime // _OVERLAP_DIVISOR


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A webhook certificate with its private key, as PEM; both empty if there is none."""

    certificate: bytes = b""
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class CertificateGenerations:
    """The state of certificate rotation: the served certificate, the next one, and the published CA certificates."""

    #: The certificate that is served.
    served: CertificatePair = CertificatePair()
    next_pair: CertificatePair = CertificatePair()
    #: The published CAs, as one PEM bundle.
    authorities: bytes = b""

    def data(self) -> dict[str, str]:
        """Return this state of certificate rotation as the `data` of a Secret."""
        file_contents = {
            "tls.crt": self.served.certificate,
            "tls.key": self.served.key,
            "next.crt": self.next_pair.certificate,
            "next.key": self.next_pair.key,
            "ca.crt": self.authorities,
        }
        return {name: base64.b64encode(content).decode() for name, content in file_contents.items()}


def parse_generations(data: Mapping[str, str]) -> CertificateGenerations:
    """Parse the state of certificate rotation from the `data` of a Secret; missing fields are empty."""
    file_contents = {name: base64.b64decode(text) for name, text in data.items()}
    served_pair = CertificatePair(file_contents.get("tls.crt", b""), file_contents.get("tls.key", b""))
    next_pair = CertificatePair(file_contents.get("next.crt", b""), file_contents.get("next.key", b""))
    return CertificateGenerations(served_pair, next_pair, file_contents.get("ca.crt", b""))


def next_generations(
    state: CertificateGenerations, now: Instant, requirements: CertificateRequirements
) -> CertificateGenerations:
    """Return the state after the next step of certificate rotation; the same object if no step is due."""
    if not _can_serve_pair(state.served, now, requirements):
        new_pair, new_ca = _create_generation(now, requirements)
        return CertificateGenerations(new_pair, CertificatePair(), new_ca + _without_expired(state.authorities, now))
    if state.next_pair.certificate:
        if now < _pair_created_at(state.next_pair) + requirements.overlap:
            return state
        return CertificateGenerations(state.next_pair, CertificatePair(), state.authorities)
    if now >= _expires_at(state.served) - _OVERLAPS_BEFORE_EXPIRY * requirements.overlap:
        new_pair, new_ca = _create_generation(now, requirements)
        return CertificateGenerations(state.served, new_pair, new_ca + state.authorities)
    authorities = _without_expired(state.authorities, now)
    return (
        state
        if authorities == state.authorities
        else CertificateGenerations(state.served, CertificatePair(), authorities)
    )


def _can_serve_pair(pair: CertificatePair, now: Instant, requirements: CertificateRequirements) -> bool:
    if not pair.certificate or not pair.key:
        return False
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
    except ValueError:
        return False
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return _expires_at(pair) > now and list(names.get_values_for_type(x509.DNSName)) == list(requirements.names)


def _create_generation(now: Instant, requirements: CertificateRequirements) -> tuple[CertificatePair, bytes]:
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # Each CA has a unique name, so that clients do not confuse those of two generations.
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"batchyard-webhooks-{x509.random_serial_number():x}")])
    ca_certificate = (
        _certificate_builder(now, requirements, issuer, issuer, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, requirements.names[0][:64])])
    certificate = (
        _certificate_builder(now, requirements, subject, issuer, key.public_key())
        .add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, requirements.names))), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key_pem = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return CertificatePair(certificate.public_bytes(pem), key_pem), ca_certificate.public_bytes(pem)


def _certificate_builder(
    now: Instant,
    requirements: CertificateRequirements,
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(to_datetime(now - _BACKDATED_VALIDITY))
        .not_valid_after(to_datetime(now + requirements.lifetime))
    )


def _pair_created_at(pair: CertificatePair) -> Instant:
    valid_from = x509.load_pem_x509_certificate(pair.certificate).not_valid_before_utc
    return (int(valid_from.timestamp()) + 1) * SECOND + _BACKDATED_VALIDITY  # certificate times are in whole seconds


def _expires_at(pair: CertificatePair) -> Instant:
    return _expiry_of(pair.certificate)


def _expiry_of(certificate: bytes) -> Instant:
    return int(x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()) * SECOND


def _without_expired(bundle: bytes, now: Instant) -> bytes:
    certificates = [certificate + _PEM_END for certificate in bundle.split(_PEM_END) if certificate.strip()]
    return b"".join(certificate for certificate in certificates if _expiry_of(certificate) > now)


# Rotates the webhook certificates in a Secret that all replicas share, and keeps `caBundle` fields up to date.
#
# Every replica reads the Secret periodically, performs the next rotation step, and serves the resulting certificate.
# Optimistic concurrency resolves conflicts: a replica whose update is rejected by resourceVersion reads the Secret
# again.


#: The maximum interval between checks of the Secret, and the minimum number of checks within an overlap.
_CHECK_INTERVAL: Final = MINUTE
_CHECKS_IN_OVERLAP: Final = 6
_REGISTRATIONS_PATH: Final = "/apis/admissionregistration.k8s.io/v1"
_CRDS_PATH: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_encode: Final = msgspec.json.Encoder().encode


class CertificateTargets(NamedTuple):
    """The Secret that stores the webhook certificates, and the objects whose `caBundle` is kept up to date."""

    namespace: str
    secret: str
    #: The name of the webhooks' Service, and of both webhook configurations.
    service: str
    #: The CustomResourceDefinitions with a conversion webhook.
    definitions: Sequence[str]
    requirements: CertificateRequirements


class CertificateRotator:
    """Rotates the webhook certificates in their Secret, and publishes their CA certificates in `caBundle` fields.

    `context` is the TLS context of the webhook server, with the current certificate.
    """

    def __init__(self, targets: CertificateTargets, sender: HttpTransport, report: Callable[[str], None]) -> None:
        self._targets = targets
        self._transport = sender
        self._report = report
        self._served = CertificatePair()
        #: The errors that were reported and may still last.
        self._reported_errors: dict[str, None] = {}
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        #: Whether a certificate is served whose CA is published everywhere.
        self.is_ready = False

    @contextlib.asynccontextmanager
    async def rotate_certificates(self) -> AsyncIterator[None]:
        """Check the webhook certificates, then rotate them in the background within the `async with` block."""
        await self._check_certificates()
        task = asyncio.create_task(self._check_periodically())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def check_interval(self) -> Duration:
        """The interval between two checks of the certificates' Secret, in microseconds, once `is_ready` is True."""
        return min(_CHECK_INTERVAL, self._targets.requirements.overlap // _CHECKS_IN_OVERLAP)

    async def _check_periodically(self) -> None:
        while True:
            timeout_event = asyncio.Event()
            wait_duration = self.check_interval if self.is_ready else min(self.check_interval, SECOND)
            asyncio.get_running_loop().call_later(wait_duration / SECOND, timeout_event.set)
            await timeout_event.wait()
            await self._check_certificates()

    async def _check_certificates(self) -> None:
        generations = await self._perform_rotation()
        if generations is None:
            return
        injection_results = [
            await self._inject_bundle(path, generations.authorities) for path in self._paths_of_objects_with_ca_bundle()
        ]
        if generations.served != self._served:
            with _certificate_memory_file(generations.served.certificate + generations.served.key) as path:
                self.context.load_cert_chain(path)
            self._served = generations.served
        self.is_ready = all(injection_results)
        if self.is_ready and self._reported_errors:
            self._reported_errors.clear()
            self._report("batchyard: webhook certificates: the checks succeed again")

    async def _perform_rotation(self) -> CertificateGenerations | None:
        targets = self._targets
        secrets_path = f"/api/v1/namespaces/{targets.namespace}/secrets"
        response = await self._transport.send_request(transport.HttpRequest("GET", f"{secrets_path}/{targets.secret}"))
        if response.code not in {200, 404}:
            self._report_error(response)
            return None
        secret = transport.decode_object(response.body) if response.code == 200 else {}
        current_generations = parse_generations(secret.get("data") or {})
        new_generations = next_generations(
            current_generations, response.server_time or wall_clock(), targets.requirements
        )
        if new_generations is current_generations:
            return current_generations
        encoded_secret = _encode(_secret_object(secret, targets, new_generations))
        request = (
            transport.HttpRequest("PUT", f"{secrets_path}/{targets.secret}", encoded_secret)
            if secret
            else transport.HttpRequest("POST", secrets_path, encoded_secret)
        )
        response = await self._transport.send_request(request)
        if response.code in {200, 201}:
            return new_generations
        if response.code == 409:
            return await self._perform_rotation()
        self._report_error(response)
        return None

    def _paths_of_objects_with_ca_bundle(self) -> Iterator[str]:
        name = self._targets.service
        yield f"{_REGISTRATIONS_PATH}/mutatingwebhookconfigurations/{name}"
        yield f"{_REGISTRATIONS_PATH}/validatingwebhookconfigurations/{name}"
        for definition in self._targets.definitions:
            yield f"{_CRDS_PATH}/{definition}"

    async def _inject_bundle(self, path: str, authorities: bytes) -> bool:
        response = await self._transport.send_request(transport.HttpRequest("GET", path))
        if response.code == 404:
            return True
        if response.code != 200:
            self._report_error(response)
            return False
        stored_object = transport.decode_object(response.body)
        service_reference = {"namespace": self._targets.namespace, "name": self._targets.service}
        updated_object = with_ca_bundle(stored_object, base64.b64encode(authorities).decode(), service_reference)
        if updated_object == stored_object:
            return True
        response = await self._transport.send_request(transport.HttpRequest("PUT", path, _encode(updated_object)))
        if response.code == 409:  # another replica updated it first: read it again
            return await self._inject_bundle(path, authorities)
        if response.code != 200:
            self._report_error(response)
        return response.code == 200

    def _report_error(self, response: transport.HttpResponse) -> None:
        error = transport.failure_reason(response)
        if error not in self._reported_errors:
            self._reported_errors[error] = None
            secret = f"{self._targets.namespace}/{self._targets.secret}"
            self._report(f"batchyard: webhook certificates (Secret {secret}) cannot be checked or published: {error}")


def with_ca_bundle(obj: Mapping[str, Any], ca_bundle: str, service: Mapping[str, str]) -> Obj:
    """Return a webhook configuration or a CRD with this CA bundle in the webhooks that call this Service.

    Webhooks of another Service keep their bundle, because they belong to another program such as Kueue.
    """
    if "webhooks" in obj:
        hooks = [{**h, "clientConfig": _set_ca_bundle(h["clientConfig"], ca_bundle, service)} for h in obj["webhooks"]]
        return {**obj, "webhooks": hooks}
    old_conversion = obj.get("spec", {}).get("conversion") or {}
    if old_conversion.get("strategy") != "Webhook":
        return obj  # it has no conversion webhook
    webhook = old_conversion["webhook"]
    client_config = _set_ca_bundle(webhook["clientConfig"], ca_bundle, service)
    conversion = {**old_conversion, "webhook": {**webhook, "clientConfig": client_config}}
    return {**obj, "spec": {**obj["spec"], "conversion": conversion}}


def _set_ca_bundle(client_config: Mapping[str, Any], ca_bundle: str, service: Mapping[str, str]) -> Mapping[str, Any]:
    service_reference = client_config.get("service") or {}
    is_own_service = all(service_reference.get(field) == value for field, value in service.items())
    return {**client_config, "caBundle": ca_bundle} if is_own_service else client_config


def _secret_object(secret: Mapping[str, Any], targets: CertificateTargets, generations: CertificateGenerations) -> Obj:
    metadata = secret.get("metadata") or {"name": targets.secret, "namespace": targets.namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": generations.data()}


@contextlib.contextmanager
def _certificate_memory_file(content: bytes) -> Iterator[Path]:
    """Yield the path of an in-memory file with this content, so that a private key is not written to disk."""
    fd = os.memfd_create("certificate")
    try:
        os.write(fd, content)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


#: An object is at most 1.5 MiB. A review has two of them, and a conversion has a page of a list.
_BODY_SIZE_MAX: Final = 64 * 1024 * 1024
_SHUTDOWN_TIMEOUT: Final = 5.0  # seconds
#: The maximum number of lookups for a review, and the time limit of each.
_LOOKUPS_MAX: Final = 8
_LOOKUP_TIMEOUT: Final[Duration] = 5 * SECOND
WebhookHandler: TypeAlias = Callable[[web.Request], Awaitable[web.Response]]


class WebhookOptions(NamedTuple):
    """The options of the webhook server; port 0 disables it."""

    port: int = 0
    #: The name of the Service, and of both webhook configurations.
    service: str = ""
    #: The Secret of the certificates.
    secret: str = ""
    lifetime: Duration = 0
    definitions: Sequence[str] = ()
    managed_jobs: ManagedJobs = ALL_QUEUED_JOBS
    #: The kinds of jobs that other controllers manage.
    external_kinds: Sequence[ServedKind] = ()
    #: The custom kinds of jobs that the API server serves; the list grows.
    job_kinds: Sequence[ServedKind] = ()
    #: The maximum of the timeouts for ready pods in a job's annotation; None if the annotation has no effect.
    ready_timeout_max: Duration | None = None
    #: The decision rules of the version of Kueue.
    rules: DecisionRules = DEFAULT_RULES


class LookupFailed(Exception):  # noqa: N818 - named for the event
    """The API server did not return an object on which the result of an admission review depends."""


class Webhooks:
    """The HTTPS server of the admission and conversion webhooks, which runs within its `async with` block."""

    def __init__(
        self,
        webhook_options: WebhookOptions,
        groups: Sequence[str],
        http_transport: HttpTransport,
        address_and_namespace: tuple[str, str],
    ) -> None:
        self._options = webhook_options
        self._groups = groups
        self._transport = http_transport
        self._address, self._namespace = address_and_namespace
        self._report: Callable[[str], None] = _ignore_line
        self._metrics = WebhookMetrics(monotonic_seconds)
        self._certificate_rotator: CertificateRotator | None = None
        self._runner: web.AppRunner | None = None
        self._is_listening = False

    def reporting_to(self, report: Callable[[str], None]) -> Self:
        """Set the function that gets messages for the user, and return this object."""
        self._report = report
        return self

    def texts(self) -> Iterator[str]:
        """Yield the metrics of the webhook server as Prometheus text; nothing if the server is disabled."""
        return self._metrics.texts()

    @property
    def is_ready(self) -> bool:
        """Whether the webhook server is disabled, or listens with a certificate whose CA is published."""
        if not self._options.port:
            return True
        rotator = self._certificate_rotator
        return self._is_listening and rotator is not None and rotator.is_ready

    async def __aenter__(self) -> Self:
        options = self._options
        if not options.port:
            return self
        names = [f"{options.service}.{self._namespace}{domain}" for domain in (".svc", ".svc.cluster.local", "")]
        targets = CertificateTargets(
            self._namespace,
            options.secret,
            options.service,
            options.definitions,
            CertificateRequirements(names, options.lifetime),
        )
        self._certificate_rotator = CertificateRotator(targets, self._transport, self._report)
        self._rotation_context = self._certificate_rotator.rotate_certificates()
        await self._rotation_context.__aenter__()
        app = web.Application(client_max_size=_BODY_SIZE_MAX)
        handlers = {MUTATE_PATH: self._mutate, VALIDATE_PATH: self._validate, CONVERT_PATH: _serve_conversion}
        self._metrics.expect(handlers)
        app.add_routes(web.post(path, self._count_requests(path, handler)) for path, handler in handlers.items())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._address, options.port, ssl_context=self._certificate_rotator.context)
        await start_site(site, self._address, options.port, "--webhook-port")
        self._is_listening = True
        self._report(f"batchyard: webhooks at https://{self._address}:{options.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            await self._rotation_context.__aexit__(None, None, None)

    def _count_requests(self, path: str, handler: WebhookHandler) -> WebhookHandler:
        async def counting_handler(request: web.Request) -> web.Response:
            return await self._metrics.count_response(path, handler(request), lambda response: response.status)

        return counting_handler

    async def _mutate(self, request: web.Request) -> web.Response:
        options = self._options
        review = partial(review_mutation, managed_jobs=options.managed_jobs, rules=options.rules)
        return await self._answer_review(request, review)

    async def _validate(self, request: web.Request) -> web.Response:
        options = self._options
        validate = partial(
            review_validation,
            managed_jobs=options.managed_jobs,
            ready_timeout_max=options.ready_timeout_max,
            rules=options.rules,
        )
        return await self._answer_review(request, validate)

    async def _answer_review(
        self, request: web.Request, decide: Callable[[Mapping[str, Any], Sequence[str], FetchedObjects], Obj]
    ) -> web.Response:
        review = transport.decode_object(await request.read())
        fetched: dict[ObjectQuery, Sequence[Obj]] = {}
        try:
            for _ in range(_LOOKUPS_MAX):
                try:
                    return _json_response(decide(review, self._groups, FetchedObjects(fetched)))
                except ObjectNotFetched as unknown:
                    fetched[unknown.query] = await self._look_up_objects(unknown.query)
        except InvalidReview as invalid:
            return web.Response(status=400, text=str(invalid))
        except LookupFailed as failed:
            return web.Response(status=500, text=f"looking up a referenced object failed: {failed}")
        return web.Response(status=500, text=f"the review depends on more than {_LOOKUPS_MAX} lookups of other objects")

    async def _look_up_objects(self, object_query: ObjectQuery) -> Sequence[Obj]:
        """Return the objects that an admission review depends on; the result is empty if their kind is not served.

        They are listed, because the operator's role does not permit get requests. Raises LookupFailed on other errors.
        """
        kind = scheme.POD if object_query.owner_uid else object_query.key.kind
        custom_kinds = (*self._options.external_kinds, *self._options.job_kinds)
        served_kind = next((each for each in custom_kinds if each.constant == kind), None)
        if served_kind is None and scheme.is_built_in(kind):
            served_kind = kind_info(kind)
        if served_kind is None:
            raise LookupFailed(f"the kind {kind} of {object_query.key.name} is not known yet; try again")
        selector = {"fieldSelector": f"metadata.name={object_query.key.name}"}
        if object_query.owner_uid:
            selector = {"labelSelector": f"{well_known.CONTROLLER_UID}={object_query.owner_uid}"}
        path = transport.object_path(served_kind, served_kind.storage_version, object_query.key.namespace)
        request = transport.HttpRequest("GET", f"{path}?{urlencode(selector)}", timeout=_LOOKUP_TIMEOUT)
        response = await self._transport.send_request_with_retries(request)
        if response.code == 404:  # the kind is not served
            return []
        if response.code != 200:
            raise LookupFailed(transport.failure_reason(response))
        found_items = transport.decode_object(response.body).get("items") or ()
        return [transport.to_storage_version(served_kind, served_kind.storage_version, item) for item in found_items]


async def _serve_conversion(request: web.Request) -> web.Response:
    try:
        return _json_response(review_conversion(transport.decode_object(await request.read())))
    except InvalidReview as invalid:
        return web.Response(status=400, text=str(invalid))


def _json_response(review: Obj) -> web.Response:
    return web.Response(body=_encode(review), content_type="application/json")


def _ignore_line(_line: str) -> None:
    pass
