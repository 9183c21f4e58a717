"""Which request comes next: flows share time, whatever each of them asks for."""

import pytest

from batchyard.server.http.flow_control import FairQueue


def served(queue: FairQueue[str], costs: dict[str, float], count: int) -> list[str]:
    """The flows of the next items, each of which takes the time of its flow."""
    found = []
    for _ in range(count):
        flow, _ = queue.take()
        queue.charge(flow, costs[flow])
        found.append(flow)
    return found


def test_the_items_of_one_flow_are_served_in_order() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    for item in ("one", "two", "three"):
        queue.put("anna", item)
    assert [queue.take() for _ in range(3)] == [("anna", "one"), ("anna", "two"), ("anna", "three")]
    with pytest.raises(IndexError):
        queue.take()


def test_a_flow_that_comes_later_does_not_wait_for_all_of_another() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    for number in range(100):
        queue.put("greedy", str(number))
    assert served(queue, {"greedy": 1.0}, 3) == ["greedy"] * 3
    queue.put("modest", "a")
    assert served(queue, {"greedy": 1.0, "modest": 0.01}, 2).index("modest") <= 1


def test_time_is_shared_not_turns() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    costs = {"long": 1.0, "short": 0.1}
    for number in range(200):
        queue.put("long", str(number))
        queue.put("short", str(number))
    flows = served(queue, costs, 110)
    assert 90 <= flows.count("short") <= 104


def test_an_idle_flow_saves_up_nothing() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    for number in range(100):
        queue.put("busy", str(number))
    served(queue, {"busy": 1.0}, 50)
    for number in range(50):
        queue.put("idle", str(number))
    flows = served(queue, {"busy": 1.0, "idle": 1.0}, 20)
    assert 8 <= flows.count("idle") <= 12


def test_urgent_items_come_first() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    queue.put("anna", "a")
    queue.put("owner", "urgent", is_urgent=True)
    assert queue.take() == ("", "urgent")
    assert queue.take() == ("anna", "a")


def test_items_that_wait_can_be_removed() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    queue.put("anna", "a")
    queue.put("bob", "b")
    assert sorted(queue.clear()) == ["a", "b"]
    assert len(queue) == 0
    queue.put("anna", "c")
    assert queue.take() == ("anna", "c")


def test_idle_flows_are_forgotten() -> None:
    queue: FairQueue[str] = FairQueue(0.001)
    for number in range(5000):
        queue.put(f"user-{number}", "a")
        queue.charge(queue.take()[0], 0.001)
    assert len(queue._flows) < 2500
