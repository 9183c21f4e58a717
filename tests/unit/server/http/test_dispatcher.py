"""Encoding of response bodies, and the requests that are answered at once if the platform has a standby."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchyard.apiserver.request import ApiRequest, Response, StartedResponse, UserInfo
from batchyard.apiserver.serialization import ConvertedItems
from batchyard.metrics.controllers import RequestMetrics
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import monotonic_seconds
from batchyard.server.http.dispatcher import PIECE_SIZE, RequestDispatcher, encode_in_pieces
from batchyard.server.platform.data_dir import REPLICATION_PATH, STANDBY_USER
from batchyard.server.platform.group_commit import GroupCommit
from batchyard.store.journal_file import StandbyLostError
from unit.apiserver.api import Api


def pieces_of(items: list[Any], **fields: Any) -> list[bytes]:
    return list(encode_in_pieces({**fields, "items": ConvertedItems(items, lambda item: item)}))


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2000, 2500])
def test_each_piece_has_at_most_a_thousand_items(count: int) -> None:
    pieces = pieces_of([7] * count, kind="List")
    assert json.loads(b"".join(pieces)) == {"kind": "List", "items": [7] * count}
    assert [piece.count(b"7") for piece in pieces] == [*[1000] * (count // 1000), count % 1000]
    assert pieces[-1].endswith(b"\n")


def test_long_items_are_encoded_in_pieces_of_limited_size() -> None:
    items = ["x" * (PIECE_SIZE // 2)] * 5
    pieces = pieces_of(items)
    assert json.loads(b"".join(pieces)) == {"items": items}
    assert [piece.count(b"x") // len(items[0]) for piece in pieces] == [2, 2, 1]


@pytest.mark.parametrize(
    ("user", "path", "is_refused", "code"),
    [
        (STANDBY_USER, REPLICATION_PATH, False, 403),
        (STANDBY_USER, REPLICATION_PATH, True, 403),
        (STANDBY_USER, "/api/v1/secrets", True, 503),
        ("alice", REPLICATION_PATH, False, 0),  # queued, within the limits of its user
        ("alice", REPLICATION_PATH, True, 503),
        ("alice", "/readyz", True, 503),
        ("alice", "/livez", True, 200),
    ],
)
def test_only_the_standby_and_health_checks_are_answered_at_once(
    user: str, path: str, is_refused: bool, code: int
) -> None:
    answers: list[StartedResponse] = []

    async def talk() -> None:
        gate = SimpleNamespace(refusal=lambda: StandbyLostError("lost") if is_refused else None)
        commit, metrics = cast("GroupCommit", SimpleNamespace(replication=gate)), RequestMetrics(monotonic_seconds)
        kernel = LiveKernel(asyncio.get_running_loop(), 0)
        dispatcher = RequestDispatcher(Api().server, kernel, commit, lambda: 7, metrics)
        dispatcher.submit(ApiRequest("GET", path, user=UserInfo(user, ())), answers.append)
        kernel.stop()

    asyncio.run(talk())
    assert [each.code for each in answers if isinstance(each, Response)] == [code] * bool(code)
