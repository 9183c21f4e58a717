"""Priority levels limit the requests that are executed at the same time."""

import asyncio
from typing import Any

import pytest

from batchyard.api.defaults import with_defaults
from batchyard.api.meta import key_of
from batchyard.api.validation.flow_control import provided_flow_objects
from batchyard.apiserver.auth.authorization import RequestAttributes
from batchyard.apiserver.flow_schemas import FlowSchema
from batchyard.apiserver.request import ApiRequest, UserInfo
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.server.http import flow_control
from batchyard.server.http.flow_control import FlowCounts, PriorityAndFairness, PriorityLevel, RequestFlow
from batchyard.store.memory import Store

REJECT = {"type": "Reject"}


def queue_response(**fields: int) -> dict[str, Any]:
    return {"type": "Queue", "queuing": {"queues": 1, "handSize": 1, "queueLengthLimit": 2, **fields}}


class LevelWorld:
    """A priority level with one seat of all shares, and the names of requests that it started and rejected."""

    def __init__(self, response: dict[str, Any], seats: int = 1) -> None:
        self.level = PriorityLevel("mine", FlowCounts())
        self.configure(response, seats)
        self.started: list[str] = []
        self.rejected: list[str] = []

    def configure(self, response: dict[str, Any], seats: int) -> None:
        limited = {"nominalConcurrencyShares": seats, "limitResponse": response}
        kind = {"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration"}
        obj = {**kind, "metadata": {"name": "mine"}, "spec": {"type": "Limited", "limited": limited}}
        self.level.configure(with_defaults(obj), flow_control.SEATS)

    def request(self, name: str, user: str = "anna") -> None:
        flow = RequestFlow(FlowSchema("s", "", 1, "mine", "ByUser", ()), self.level, user)
        self.level.admit(flow, lambda: self.started.append(name), lambda: self.rejected.append(name))


def test_requests_without_a_seat_are_rejected() -> None:
    world = LevelWorld(REJECT)
    world.request("a")
    world.request("b")
    world.level.release()
    world.request("c")
    assert (world.started, world.rejected) == (["a", "c"], ["b"])


def test_waiting_requests_get_free_seats_in_order() -> None:
    async def talk() -> None:
        world = LevelWorld(queue_response())
        for name in "abcd":
            world.request(name)
        assert (world.started, world.rejected) == (["a"], ["d"])
        world.level.release()
        world.level.release()
        assert world.started == ["a", "b", "c"]
        assert world.level.waiting_count == 0
        world.level.reject_all()

    asyncio.run(talk())


def test_flows_share_seats_fairly() -> None:
    async def talk() -> None:
        world = LevelWorld(queue_response(queues=64, queueLengthLimit=50))
        for number in range(5):
            world.request(f"a-{number}")
        world.request("b-0", "bob")
        world.level.release()
        world.level.release()
        assert "b-0" in world.started
        world.level.reject_all()
        assert len(world.rejected) == 3

    asyncio.run(talk())


def test_more_seats_start_waiting_requests() -> None:
    async def talk() -> None:
        world = LevelWorld(queue_response(), seats=0)
        world.request("a")
        assert world.started == []
        world.configure(queue_response(), 1)
        assert world.started == ["a"]

    asyncio.run(talk())


def test_requests_wait_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "_WAIT_SECONDS_MAX", 0.01)

    async def talk() -> None:
        world = LevelWorld(queue_response(), seats=0)
        is_rejected = asyncio.Event()
        flow = RequestFlow(FlowSchema("s", "", 1, "mine", "ByUser", ()), world.level, "anna")
        world.level.admit(flow, is_rejected.clear, is_rejected.set)
        await asyncio.wait_for(is_rejected.wait(), 5)
        assert world.level.waiting_count == 0  # the level keeps nothing of a request that was rejected
        world.configure(queue_response(), 1)
        world.request("b")
        assert world.started == ["b"]

    asyncio.run(talk())


@pytest.mark.parametrize(
    ("path", "needs_seat"),
    [
        ("namespaces/a/pods/web/proxy", False),
        ("namespaces/a/pods/web/proxy/", False),
        ("namespaces/a/pods/web:80/proxy/x/y", False),
        ("namespaces/a/services/site/proxy/proxy", False),
        ("nodes/n/proxy/metrics", False),
        ("namespaces/a/pods/web/log", False),
        ("namespaces/a/pods/web/exec", False),
        ("namespaces/a/pods/web/attach", False),
        ("namespaces/a/pods/web/portforward", False),
        ("namespaces/a/pods/proxy", True),
        ("namespaces/proxy/pods", True),
        ("namespaces/proxy/pods/proxy/status", True),
        ("namespaces/a/pods/proxy/eviction", True),
        ("nodes/proxy", True),
    ],
)
def test_requests_that_run_for_long_need_no_seat(path: str, *, needs_seat: bool) -> None:
    store = Store(window=10)
    for obj in provided_flow_objects():
        store.put(key_of(obj), obj)
    flows = PriorityAndFairness(
        lambda request: RequestAttributes(request.user, "get", resource="pods"), LocalClient(store, VirtualEventLoop(0))
    )
    user = UserInfo("anna", ("system:authenticated",))
    assert (flows.assign(ApiRequest("GET", f"/api/v1/{path}", user=user)) is not None) is needs_seat
