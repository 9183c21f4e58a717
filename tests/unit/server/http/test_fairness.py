"""The order of requests: flows share time, regardless of their requests."""

import pytest

from batchyard.server.http.flow_control import FairQueue


def serve_items(queue: FairQueue[str], costs: dict[str, float], count: int) -> list[str]:
    """Return the flows of the next items; each item costs the time of its flow."""
    result = []
    for _ in range(count):
        flow, _ = queue.take_next_item()
        queue.charge(flow, costs[flow])
        result.append(flow)
    return result


def test_items_of_same_flow_are_served_in_order() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    for item in ("one", "two", "three"):
        queue.put("anna", item)
    assert [queue.take_next_item() for _ in range(3)] == [("anna", "one"), ("anna", "two"), ("anna", "three")]
    with pytest.raises(IndexError):
        queue.take_next_item()


def test_new_flow_does_not_wait_for_whole_backlog_of_another_flow() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    for number in range(100):
        queue.put("greedy", str(number))
    assert serve_items(queue, {"greedy": 1.0}, 3) == ["greedy"] * 3
    queue.put("modest", "a")
    assert serve_items(queue, {"greedy": 1.0, "modest": 0.01}, 2).index("modest") <= 1


def test_fair_queue_shares_time_instead_of_turns() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    costs = {"long": 1.0, "short": 0.1}
    for number in range(200):
        queue.put("long", str(number))
        queue.put("short", str(number))
    flows = serve_items(queue, costs, 110)
    assert 90 <= flows.count("short") <= 104


def test_idle_flow_accumulates_no_credit() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    for number in range(100):
        queue.put("busy", str(number))
    serve_items(queue, {"busy": 1.0}, 50)
    for number in range(50):
        queue.put("idle", str(number))
    flows = serve_items(queue, {"busy": 1.0, "idle": 1.0}, 20)
    assert 8 <= flows.count("idle") <= 12


def test_urgent_items_are_served_first() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    queue.put("anna", "a")
    queue.put("owner", "urgent", is_urgent=True)
    assert queue.take_next_item() == ("", "urgent")
    assert queue.take_next_item() == ("anna", "a")


def test_clear_removes_waiting_items() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    queue.put("anna", "a")
    queue.put("bob", "b")
    assert sorted(queue.clear()) == ["a", "b"]
    assert len(queue) == 0
    queue.put("anna", "c")
    assert queue.take_next_item() == ("anna", "c")


def test_fair_queue_drops_idle_flows() -> None:
    queue: FairQueue[str] = FairQueue(0.001)
    for number in range(5000):
        queue.put(f"user-{number}", "a")
        queue.charge(queue.take_next_item()[0], 0.001)
    assert len(queue._flows) < 2500
