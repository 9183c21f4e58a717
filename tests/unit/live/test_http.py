"""The wire, without one."""

import asyncio
import json
import logging
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from batchyard.apiserver.authentication import ANONYMOUS
from batchyard.apiserver.request import Request, Response
from batchyard.apiserver.server import ApiServer
from batchyard.live.durability import GroupCommit
from batchyard.live.http import Wire
from batchyard.live.kernel import LiveKernel
from batchyard.store.journal import Journal
from batchyard.store.memory import Store
from unit.apiserver.api import Api


class Defective(ApiServer):
    """A server with a defect."""

    def handle(self, request: Request) -> Response:
        raise ZeroDivisionError(request.path)


async def asked(server: ApiServer, folder: Path, *messages: dict[str, Any], **scope: Any) -> tuple[int, dict[str, Any]]:
    """Code and body of the answer to a request that comes in these messages."""
    loop = asyncio.get_running_loop()
    store, journal = Store(), Journal(folder / "journal.db")
    kernel = LiveKernel(loop, 0)
    wire = Wire(server, kernel, GroupCommit(store, journal, loop, kernel.stop), lambda: store.revision)
    waiting, sent = list(messages), []

    async def receive() -> MutableMapping[str, Any]:
        return waiting.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    request = {"type": "http", "scheme": "http", "method": "POST", "path": "/apis", "query_string": b"", "headers": []}
    await wire({**request, **scope}, receive, send)
    kernel.stop()
    journal.close()
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_a_defect_is_told_in_the_log_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Api().server
    server.__class__ = Defective
    with caplog.at_level(logging.ERROR, "batchyard"):
        code, body = asyncio.run(asked(server, tmp_path, {"type": "http.request", "body": b""}))
    assert (code, body["reason"]) == (500, "InternalError")
    name = body["message"].split()[4].rstrip(";")
    assert f"defect {name} in the answer to POST /apis" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert "ZeroDivisionError" not in str(body)


def test_half_a_request_is_none(tmp_path: Path) -> None:
    half = ({"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"})
    code, body = asyncio.run(asked(Api().server, tmp_path, *half))
    assert (code, body["message"]) == (400, "the request ended before its body")


def test_of_whoever_is_not_known_no_body_is_taken(tmp_path: Path) -> None:
    api = Api()
    code, body = asyncio.run(asked(api.server, tmp_path, scheme="https", state={"user": ANONYMOUS}))
    assert (code, body["reason"]) == (401, "Unauthorized")
    assert api.audited[-1].known.user == ANONYMOUS
