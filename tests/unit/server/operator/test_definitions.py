"""What a server lacks is installed, and what it has is left alone."""

import asyncio

import msgspec

from batchyard.api import scheme
from batchyard.client.transport import HttpAnswer, HttpRequest
from batchyard.server.operator.definitions import install

KINDS = (scheme.JOB, scheme.WORKLOAD, scheme.JOB_SET, scheme.LEASE)
ESTABLISHED = {"status": {"conditions": [{"type": "Established", "status": "True"}]}}


class Server:
    """One that serves Kueue's kinds in an old version, and takes definitions unless it refuses them."""

    def __init__(self, refusal: int = 0) -> None:
        self.refusal = refusal
        self.sent: list[str] = []

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        if request.method == "POST":
            self.sent.append(msgspec.json.decode(request.body)["metadata"]["name"])
            return HttpAnswer(self.refusal or 201, b'{"message": "no rights"}')
        if "customresourcedefinitions" in request.path:
            return HttpAnswer(200, msgspec.json.encode(ESTABLISHED))
        return HttpAnswer(200 if "/kueue.x-k8s.io/v1beta1/" in request.path else 404)


def test_only_what_is_missing_is_installed() -> None:
    server = Server()
    reported = asyncio.run(install(server, KINDS))
    assert server.sent == ["jobsets.jobset.x-k8s.io"]
    assert reported == ["batchyard: jobsets.jobset.x-k8s.io: installed, version v1alpha2"]


def test_a_refusal_is_told() -> None:
    reported = asyncio.run(install(Server(403), KINDS))
    assert reported == ["batchyard: jobsets.jobset.x-k8s.io: not installed: no rights"]


def test_what_somebody_else_has_just_installed_is_as_good() -> None:
    assert asyncio.run(install(Server(409), KINDS)) != []
