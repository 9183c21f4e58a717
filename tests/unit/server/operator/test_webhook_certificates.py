"""Replicas that write their certificates to the API server at the same time."""

import asyncio
import json
from typing import Any

from batchyard.base.instant import HOUR
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.server.operator.webhooks import (
    CertificateRequirements,
    CertificateRotator,
    CertificateTargets,
    with_ca_bundle,
)

KEPT = CertificateTargets(
    "system", "certificates", "hooks", ("kinds",), CertificateRequirements(["hooks.system.svc"], 24 * HOUR)
)

OURS = {"service": {"namespace": "system", "name": "hooks", "path": "/validate"}}
THEIRS = {"service": {"namespace": "kueue-system", "name": "kueue-webhook-service"}, "caBundle": "dGhlaXJz"}


class ConflictingServer:
    """A server with an object at each path except the Secret's; the first write of each object conflicts."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.overtaken: dict[str, None] = {}

    async def send_request(self, request: HttpRequest) -> HttpResponse:
        path = request.path
        if request.method == "GET":
            result = self.objects.get(path) or (None if "secrets" in path else {"webhooks": [{"clientConfig": OURS}]})
            return HttpResponse(404) if result is None else HttpResponse(200, json.dumps(result).encode())
        if path not in self.overtaken:
            self.overtaken[path] = None
            return HttpResponse(409, b'{"message": "the object has been modified"}')
        self.objects[path] = json.loads(request.body)
        return HttpResponse(200, request.body)


def test_certificate_keeper_retries_conflicts_silently() -> None:
    server, reported = ConflictingServer(), list[str]()
    keeper = CertificateRotator(KEPT, server, reported.append)  # type: ignore[arg-type]

    async def look() -> None:
        async with keeper.rotate_certificates():
            pass

    asyncio.run(look())
    assert keeper.is_ready
    assert reported == []
    assert len(server.overtaken) == 4, "the Secret, both configurations and the kind"


def test_authorities_of_another_service_are_kept() -> None:
    converted = {"spec": {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": THEIRS}}}}
    hooks = {"webhooks": [{"clientConfig": THEIRS}, {"clientConfig": {"url": "https://elsewhere"}}]}
    for obj in (converted, hooks):
        assert with_ca_bundle(obj, "b3Vycw==", OURS["service"]) == obj
    ours = with_ca_bundle({"webhooks": [{"clientConfig": OURS}]}, "b3Vycw==", {"namespace": "system", "name": "hooks"})
    assert ours["webhooks"] == [{"clientConfig": {**OURS, "caBundle": "b3Vycw=="}}]


def test_configuration_of_another_program_is_not_changed() -> None:
    server = ConflictingServer()
    paths = ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/kinds",)
    theirs = {"spec": {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": THEIRS}}}}
    server.objects |= dict.fromkeys(paths, theirs)
    keeper = CertificateRotator(KEPT, server, list[str]().append)  # type: ignore[arg-type]

    async def look() -> None:
        async with keeper.rotate_certificates():
            pass

    asyncio.run(look())
    assert keeper.is_ready
    assert [server.objects[path] for path in paths] == [theirs]
