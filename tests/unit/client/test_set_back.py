"""A server that knows less than it has told: set back to an old copy of its storage, or begun anew at its address."""

from batchyard.client.transport import HttpAnswer
from batchyard.interfaces.client import Create, Delete, WriteResult
from unit.apiserver.api import Api
from unit.client.served import Served
from unit.client.test_rest import LOST, changes, config_map, key, put, served, write


def knowing_much() -> Served:
    world = served()
    for name in ("kept", "gone-0", "gone-1", "gone-2"):
        put(world, name, x="1")
    world.run(1)
    world.reported.clear()
    return world


def set_back(world: Served) -> None:
    """Another server takes the place of the one that was there, which knew more."""
    world.line.cut()
    world.line.api = world.api = Api(1000, world.kernel.now())


def test_all_is_listed_anew() -> None:
    world = knowing_much()
    set_back(world)
    put(world, "kept", x="2")
    world.run(60)
    reported = [change[:3] for change in changes(world) if not change[1].startswith("gone-")]
    assert reported == [("DELETED", "kept", {"x": "1"}), ("ADDED", "kept", {"x": "2"})]
    assert world.client.get(key("gone-0")) is None
    put(world, "new", x="1")
    world.run(1)
    assert world.client.get(key("new")) is not None


def test_who_waits_to_see_what_he_wrote_sees_what_is_there() -> None:
    world = knowing_much()
    world.line.cut()
    world.line.trouble = lambda request: LOST if "watch=1" in request.path else None
    results: list[WriteResult] = []
    world.client.submit([Create(config_map("b", x="1"))], results.append)
    world.client.submit([Delete(key("kept"))], results.append)
    world.run(10)
    assert not results
    set_back(world)
    world.line.trouble = lambda _request: None
    put(world, "kept", x="1")
    world.run(60)
    assert len(results) == 2
    assert write(world, Create(config_map("b", x="2"))).error is None


def test_a_server_that_takes_too_long_is_not_one_that_was_set_back() -> None:
    world = served()
    listed = len([asked for asked in world.line.asked if "limit=" in asked])
    world.line.cut()
    slow = HttpAnswer(504, trouble="the server was unable to return a response in the time allotted")
    world.line.trouble = lambda request: slow if "watch=1" in request.path else None
    world.run(60)
    assert len([asked for asked in world.line.asked if "limit=" in asked]) == listed
