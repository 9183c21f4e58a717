"""Replicas that tell the API server of their certificates at the same time."""

import asyncio
import json
from typing import Any

from batchyard.base.instant import HOUR
from batchyard.client.wire import HttpAnswer, HttpRequest
from batchyard.live.certificate_generations import Terms
from batchyard.live.webhook_certificates import CertificateKeeper, Kept

KEPT = Kept("system", "certificates", "hooks", ("kinds",), Terms(["hooks.system.svc"], 24 * HOUR))


class Server:
    """Has an object at every path but the Secret's; another replica writes each just before we do, once."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.overtaken: dict[str, None] = {}

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        path = request.path
        if request.method == "GET":
            found = self.objects.get(path) or (None if "secrets" in path else {"webhooks": [{"clientConfig": {}}]})
            return HttpAnswer(404) if found is None else HttpAnswer(200, json.dumps(found).encode())
        if path not in self.overtaken:
            self.overtaken[path] = None
            return HttpAnswer(409, b'{"message": "the object has been modified"}')
        self.objects[path] = json.loads(request.body)
        return HttpAnswer(200, request.body)


def test_one_who_was_slower_looks_again_and_says_nothing() -> None:
    server, told = Server(), list[str]()
    keeper = CertificateKeeper(KEPT, server, told.append)  # type: ignore[arg-type]

    async def look() -> None:
        async with keeper.keeping():
            pass

    asyncio.run(look())
    assert keeper.is_ready
    assert told == []
    assert len(server.overtaken) == 4, "the Secret, both configurations and the kind"
