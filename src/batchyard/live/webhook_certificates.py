"""Keeps the certificates of webhooks: in a Secret that all replicas share, and with the API server that asks them.

Every replica looks at the Secret from time to time, does what is to be done next, and shows what is then in it. Two
that do so at once are told apart by the Secret's revision: whoever comes second looks again.
"""

import asyncio
import base64
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.meta import Obj
from batchyard.base.instant import MINUTE, SECOND, Duration
from batchyard.client.wire import HttpAnswer, HttpRequest
from batchyard.client.writes import decoded, trouble_of
from batchyard.live.certificate_generations import Generations, Pair, Terms, generations_of, stepped
from batchyard.live.clock import wall_clock
from batchyard.live.rest_wire import HttpTransport

#: How often the Secret is looked at, at most; with short lives more often.
_EVERY: Final = MINUTE
_LOOKS_IN_OVERLAP: Final = 6
_REGISTRATIONS: Final = "/apis/admissionregistration.k8s.io/v1"
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_encode: Final = msgspec.json.Encoder().encode


class Kept(NamedTuple):
    """Where certificates are kept, and who is told of their authorities."""

    namespace: str
    secret: str
    #: The Service that the API server asks, and both configurations of webhooks by the same name.
    service: str
    #: The definitions of kinds whose versions we convert.
    definitions: Sequence[str]
    terms: Terms


class CertificateKeeper:
    """See the module. `context` shows the present certificate to whoever connects."""

    def __init__(self, kept: Kept, wire: HttpTransport, tell: Callable[[str], None]) -> None:
        self._kept = kept
        self._wire = wire
        self._tell = tell
        self._shown = Pair()
        #: What was told to be wrong, and may be so still.
        self._troubles: dict[str, None] = {}
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        #: Whether there is a certificate, and everybody has been told of its authority.
        self.is_ready = False

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Keep them; the first look is over when this begins."""
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
        """How often it is looked."""
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
        told = [await self._inject(path, held.authorities) for path in self._places()]
        if held.shown != self._shown:
            with _file(held.shown.certificate + held.shown.key) as path:
                self.context.load_cert_chain(path)
            self._shown = held.shown
        self.is_ready = all(told)
        if self.is_ready and self._troubles:
            self._troubles.clear()
            self._tell("batchyard: webhooks: certificates are as they should be again")

    async def _settled(self) -> Generations | None:
        """What is held, after what was to be done; None where that could not be found out."""
        kept = self._kept
        place = f"/api/v1/namespaces/{kept.namespace}/secrets"
        answer = await self._wire.ask(HttpRequest("GET", f"{place}/{kept.secret}"))
        if answer.code not in {200, 404}:
            self._troubled(answer)
            return None
        secret = decoded(answer.body) if answer.code == 200 else {}
        held = generations_of(secret.get("data") or {})
        wanted = stepped(held, answer.told_at or wall_clock(), kept.terms)
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
        """Tell of the authorities in an object; whether they are in it. Where there is none nobody asks by it."""
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
        if answer.code == 409:  # another replica was faster: see what it said
            return await self._inject(path, authorities)
        if answer.code != 200:
            self._troubled(answer)
        return answer.code == 200

    def _troubled(self, answer: HttpAnswer) -> None:
        trouble = trouble_of(answer)
        if trouble not in self._troubles:
            self._troubles[trouble] = None
            self._tell(f"batchyard: webhooks: certificates: {trouble}")


def with_authorities(obj: Mapping[str, Any], bundle: str, service: Mapping[str, str]) -> Obj:
    """A configuration of webhooks, or a definition that is converted by one, with the authorities that it trusts.

    A webhook that asks another Service keeps its authorities: another program, such as Kueue, answers there.
    """
    if "webhooks" in obj:
        hooks = [{**hook, "clientConfig": _trusting(hook["clientConfig"], bundle, service)} for hook in obj["webhooks"]]
        return {**obj, "webhooks": hooks}
    converting = obj.get("spec", {}).get("conversion") or {}
    if converting.get("strategy") != "Webhook":
        return obj  # there is one version
    webhook = converting["webhook"]
    client = _trusting(webhook["clientConfig"], bundle, service)
    conversion = {**converting, "webhook": {**webhook, "clientConfig": client}}
    return {**obj, "spec": {**obj["spec"], "conversion": conversion}}


def _trusting(client: Mapping[str, Any], bundle: str, service: Mapping[str, str]) -> Mapping[str, Any]:
    """How a webhook is reached, with these authorities where it is reached at that Service."""
    reached = client.get("service") or {}
    is_ours = all(reached.get(field) == value for field, value in service.items())
    return {**client, "caBundle": bundle} if is_ours else client


def _secret(found: Mapping[str, Any], kept: Kept, held: Generations) -> Obj:
    metadata = found.get("metadata") or {"name": kept.secret, "namespace": kept.namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": held.data()}


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[Path]:
    """A file in memory: there may be no other place to write to, and keys have none on disks."""
    number = os.memfd_create("certificate")
    try:
        os.write(number, content)
        yield Path(f"/proc/self/fd/{number}")
    finally:
        os.close(number)
