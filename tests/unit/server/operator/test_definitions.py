"""Missing definitions are installed, and existing definitions are kept."""

import asyncio

import msgspec

from batchyard.api import scheme
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.server.operator.definitions import install_definitions

KINDS = (scheme.JOB, scheme.WORKLOAD, scheme.JOB_SET, scheme.LEASE)
ESTABLISHED = {"status": {"conditions": [{"type": "Established", "status": "True"}]}}


class DefinitionServer:
    """A server with an old version of Kueue's kinds; it accepts or rejects definitions."""

    def __init__(self, refusal: int = 0) -> None:
        self.refusal = refusal
        self.sent: list[str] = []

    async def send_request(self, request: HttpRequest) -> HttpResponse:
        if request.method == "POST":
            self.sent.append(msgspec.json.decode(request.body)["metadata"]["name"])
            return HttpResponse(self.refusal or 201, b'{"message": "no rights"}')
        if "customresourcedefinitions" in request.path:
            return HttpResponse(200, msgspec.json.encode(ESTABLISHED))
        return HttpResponse(200 if "/kueue.x-k8s.io/v1beta1/" in request.path else 404)


def test_only_missing_definitions_are_installed() -> None:
    server = DefinitionServer()
    reported = asyncio.run(install_definitions(server, KINDS))
    assert server.sent == ["jobsets.jobset.x-k8s.io"]
    assert reported == ["batchyard: CustomResourceDefinition jobsets.jobset.x-k8s.io installed, version v1alpha2"]


def test_rejected_installation_is_reported() -> None:
    reported = asyncio.run(install_definitions(DefinitionServer(403), KINDS))
    assert reported == [
        (
            "batchyard: CustomResourceDefinition jobsets.jobset.x-k8s.io could not be installed: no rights; "
            "permit the operator to create it, or create it yourself"
        )
    ]


def test_conflicting_installation_counts_as_installed() -> None:
    assert asyncio.run(install_definitions(DefinitionServer(409), KINDS)) != []
