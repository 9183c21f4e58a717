"""Invalid responses of a proxy or a broken API server: the client continues, and reports no write as completed."""

import pytest

from batchyard.base.instant import SECOND
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.interfaces.client import Create, Delete, Update, Write
from unit.client.client_and_server import ClientAndServer
from unit.client.test_election import ElectionPair
from unit.client.test_rest import config_map, failing, key, put, synced_client, write

LOGIN = HttpResponse(200, b"<html>Log in</html>")


@pytest.mark.parametrize(
    ("odd", "method"),
    [
        pytest.param(Create(config_map("b")), "POST", id="create"),
        pytest.param(Update(config_map(x="2")), "PATCH", id="update"),
        pytest.param(Delete(key()), "DELETE", id="delete"),
    ],
)
def test_html_response_with_200_does_not_complete_write(odd: Write, method: str) -> None:
    world = synced_client()
    put(world, "a", x="1")
    world.run(1)
    world.line.trouble = failing(LOGIN, methods=(method,))
    assert "not from the Kubernetes API: <html>" in str(write(world, odd).error)
    assert write(world, odd).error is None


def test_html_response_with_200_does_not_elect_leader() -> None:
    rivals = ElectionPair()
    rivals.run(5)
    rivals.second.line.trouble = lambda _request: LOGIN
    rivals.run(30)
    assert rivals.second.reported == []
    assert rivals.second.troubles == [
        (
            "cannot read or write the Lease team/batchyard: "
            "the response is not from the Kubernetes API: <html>Log in</html>"
        )
    ]
    rivals.first.line.trouble = rivals.second.line.trouble
    rivals.run(20)
    assert rivals.first.reported == ["leads", "lost"]


def requests_in_ten_seconds(world: ClientAndServer) -> int:
    before = len(world.line.asked)
    world.line.cut()
    world.run(10)
    return len(world.line.asked) - before


def test_repeated_gone_watches_are_retried_with_backoff() -> None:
    world = synced_client()

    def too_old(request: HttpRequest) -> HttpResponse | None:
        return HttpResponse(410) if "watch=1" in request.path else None

    world.line.trouble = too_old
    assert requests_in_ten_seconds(world) < 50
    world.line.trouble = lambda _request: None
    world.run(60)
    put(world, "a", x="1")
    world.run(1)
    assert world.client.get(key()) is not None


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "ADDED", "object": {"kind": "ConfigMap"}}',
        b'{"type": "MODIFIED", "object": []}',
        b'{"type": "BOOKMARK"}',
        b'{"type": "ERROR", "object": {"code": "gone"}}',
        b'{"type": "ERROR", "object": "gone"}',
        b"[1]",
    ],
)
def test_invalid_watch_line_is_trouble(line: bytes) -> None:
    world = synced_client()
    informer = next(iter(world.client.informers.values()))
    assert informer.process_watch_lines([line]) == []
    assert informer.trouble


@pytest.mark.parametrize("items", [b"[null]", b'[{"metadata": {}}]', b'{"a": 1}'])
def test_list_with_invalid_items_is_trouble(items: bytes) -> None:
    world = synced_client()
    informer = next(iter(world.client.informers.values()))
    informer.relist()
    answer = HttpResponse(200, b'{"metadata": {"resourceVersion": "7"}, "items": %s}' % items)
    assert informer.process_list_page(answer) == ()
    assert "not from the Kubernetes API" in informer.trouble


def test_leader_with_html_responses_writes_until_deadline_only() -> None:
    rivals = ElectionPair()
    rivals.run(5)
    rivals.first.line.trouble = lambda _request: LOGIN
    deadline = rivals.first.leadership._elector.deadline
    rivals.run((deadline - rivals.kernel.now()) / SECOND + 1)
    assert not rivals.first.leadership.may_write()
