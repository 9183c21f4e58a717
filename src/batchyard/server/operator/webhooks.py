"""Webhook server of an operator: admission and conversion over HTTPS, on every replica."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeAlias

import msgspec
from aiohttp import web

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj
from batchyard.api.scheme import kind_info
from batchyard.api.selectors import Selector
from batchyard.base.instant import SECOND, Duration
from batchyard.client.resource_paths import path_of, received
from batchyard.client.transport import HttpRequest
from batchyard.client.writes import decoded, failure_reason
from batchyard.metrics.forks import WebhookMetrics
from batchyard.server.clocks.wall import ticks
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.operator.webhook_certificates import CertificateKeeper, CertificateTargets, CertificateTerms
from batchyard.webhooks.hooks import CONVERT, MUTATE, VALIDATE, FetchedObjects, ObjectNotFetched, ObjectQuery
from batchyard.webhooks.reviews import InvalidReview, converted, mutated, namespace_of, validated

#: An object is at most 1.5 MiB. A review has two of them, and a conversion has a page of a list.
_BODY_MAX: Final = 64 * 1024 * 1024
_ENDS_WITHIN: Final = 5.0  # seconds
#: The maximum number of lookups for a review, and the time limit of each.
_LOOKUPS_MAX: Final = 8
_LOOKS_UP_WITHIN: Final[Duration] = 5 * SECOND
Answering: TypeAlias = Callable[[web.Request], Awaitable[web.Response]]
_encode: Final = msgspec.json.Encoder().encode


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
    """The API server did not return an object that the review depends on."""


class Webhooks:
    """The HTTPS server of the webhooks, which runs while its context is entered."""

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
        """Set the function that reports errors."""
        self._report = report
        return self

    def texts(self) -> Iterator[str]:
        """Yield the metrics of the webhooks; none if they are disabled."""
        return self._figures.texts()

    @property
    def is_ready(self) -> bool:
        """Whether the webhooks can be called: a certificate is served and its CA is published. True if disabled."""
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
        return web.Response(status=500, text="the review needs too many lookups")

    async def _looked_up(self, question: ObjectQuery) -> Sequence[Obj]:
        """Look up objects by a list with a selector: every role that may watch a kind may also list it."""
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
