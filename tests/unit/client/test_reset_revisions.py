"""A server whose revisions went back: restored from an old copy of its storage, or replaced by a new server."""

from batchyard.client.transport import HttpResponse
from batchyard.interfaces.client import Create, Delete, WriteResult
from unit.apiserver.api import Api
from unit.client.client_and_server import ClientAndServer
from unit.client.test_rest import LOST, changes, config_map, key, put, synced_client, write


def client_with_objects() -> ClientAndServer:
    world = synced_client()
    for name in ("kept", "gone-0", "gone-1", "gone-2"):
        put(world, name, x="1")
    world.run(1)
    world.reported.clear()
    return world


def reset_server(world: ClientAndServer) -> None:
    """Replace the server by an empty one."""
    world.line.cut()
    world.line.api = world.api = Api(1000, world.kernel.now())


def test_client_relists_after_server_reset() -> None:
    world = client_with_objects()
    reset_server(world)
    put(world, "kept", x="2")
    world.run(60)
    reported = [change[:3] for change in changes(world) if not change[1].startswith("gone-")]
    assert reported == [("DELETED", "kept", {"x": "1"}), ("ADDED", "kept", {"x": "2"})]
    assert world.client.get(key("gone-0")) is None
    put(world, "new", x="1")
    world.run(1)
    assert world.client.get(key("new")) is not None


def test_pending_writes_complete_after_server_reset() -> None:
    world = client_with_objects()
    world.line.cut()
    world.line.trouble = lambda request: LOST if "watch=1" in request.path else None
    results: list[WriteResult] = []
    world.client.submit([Create(config_map("b", x="1"))], results.append)
    world.client.submit([Delete(key("kept"))], results.append)
    world.run(10)
    assert not results
    reset_server(world)
    world.line.trouble = lambda _request: None
    put(world, "kept", x="1")
    world.run(60)
    assert len(results) == 2
    assert write(world, Create(config_map("b", x="2"))).error is None


def test_watch_timeout_does_not_relist() -> None:
    world = synced_client()
    listed = len([asked for asked in world.line.asked if "limit=" in asked])
    world.line.cut()
    slow = HttpResponse(504, trouble="the server was unable to return a response in the time allotted")
    world.line.trouble = lambda request: slow if "watch=1" in request.path else None
    world.run(60)
    assert len([asked for asked in world.line.asked if "limit=" in asked]) == listed
