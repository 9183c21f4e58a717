"""Missing definitions are installed, and existing definitions are kept."""

import asyncio

import msgspec

from batchyard.api import scheme
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.server.operator.definitions import find_external_kinds, install_definitions

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
        if request.path == "/apis/example.com/v1":
            names = [{"name": "flows/status", "kind": "Flow"}, {"name": "flowses", "kind": "Flow"}]
            return HttpResponse(200, msgspec.json.encode({"resources": names}))
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


def test_external_kinds_get_names_of_server() -> None:
    kinds = [("example.com/v1", "Flow"), ("example.com/v1", "Other"), ("unserved.com/v1", "Thing")]
    found = asyncio.run(find_external_kinds(DefinitionServer(), kinds))
    assert [each.plural for each in found] == ["flowses", "others", "things"]
    assert (found[0].constant, found[0].api_version, found[0].namespaced) == (
        "Flow.example.com",
        "example.com/v1",
        True,
    )
