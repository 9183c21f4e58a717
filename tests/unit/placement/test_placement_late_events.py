"""Placement whose watch events arrive later than the objects change."""

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of, with_path, with_status
from batchyard.interfaces.client import Delete, EventType, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.placement.controller import PASS_KEY, PlacementController
from stage import Stage
from unit.placement.placement_make import member, node, pod

GATES = [{"name": "g"}]


class LateEvents:
    """A placement controller beside the objects of a stage; it gets the events that the test passes on."""

    def __init__(self, *objects: Obj) -> None:
        self.stage = Stage()
        self.controller = PlacementController()
        self.stage.put(*objects)
        #: Whether the events made a pass due.
        self.is_due = True in list(map(self.observe, objects))

    def observe(self, obj: Obj, event_type: EventType = EventType.ADDED) -> bool:
        """Pass on the event of an object; return whether a pass is due."""
        event = WatchEvent(event_type, key_of(obj), obj, None, 1)
        return bool(list(self.controller.keys_for(event, make.NOW)))

    def put(self, *objects: Obj) -> None:
        """Change objects with their events."""
        self.stage.put(*objects)
        for obj in objects:
            self.observe(obj)

    def delete_quietly(self, name: str) -> None:
        """Delete a pod without its event."""
        self.stage._submit(Delete(Key(scheme.POD, "team", name), grace_period_seconds=0))
        self.stage.settle()

    def run_pass(self) -> ReconcileResult:
        """Run a pass. Its writes are not applied."""
        return self.controller.reconcile(PASS_KEY, self.stage.client, make.NOW)

    def bindings(self) -> dict[str, str]:
        """Run a pass; return the nodes of the pods that it binds."""
        writes = [write for write in self.run_pass().writes if isinstance(write, Update)]
        return {write.obj["metadata"]["name"]: write.obj["spec"]["nodeName"] for write in writes}


def deleted_pods(result: ReconcileResult) -> list[str]:
    """The pods that a pass deletes."""
    return [write.key.name for write in result.writes if isinstance(write, Delete)]


def updated_pods(result: ReconcileResult) -> list[str]:
    """The pods whose status a pass writes, once for each write."""
    return [write.obj["metadata"]["name"] for write in result.writes if isinstance(write, UpdateStatus)]


def test_placement_does_not_bind_pod_that_is_gone() -> None:
    late = LateEvents(node(), pod("gone", cpu="4"), pod("stays", cpu="4", priority=-1))
    late.delete_quietly("gone")
    assert late.bindings() == {"stays": "n"}
    assert not late.observe(node("other"))  # no pod waits for a node


def test_placement_releases_node_of_assumed_pod_that_is_gone() -> None:
    late = LateEvents(node(), pod("gone", cpu="4"))
    assert late.bindings() == {"gone": "n"}
    late.delete_quietly("gone")
    late.put(pod("next", cpu="4"))
    assert late.bindings() == {"next": "n"}


def test_placement_waits_for_event_of_victim_that_is_gone() -> None:
    late = LateEvents(node(), pod("low", cpu="4", nodeName="n"), pod("high", cpu="4", priority=1))
    assert deleted_pods(late.run_pass()) == ["low"]
    nominated = with_status(pod("high", cpu="4", priority=1), {"nominatedNodeName": "n"})
    late.put(nominated)
    late.delete_quietly("low")
    assert late.run_pass().writes == []
    assert late.observe(pod("low", cpu="4", nodeName="n"), EventType.DELETED)
    assert late.bindings() == {"high": "n"}


def test_placement_does_not_repeat_failed_eviction_for_preemptor_that_is_gone() -> None:
    high = pod("high", cpu="4", priority=1)
    late = LateEvents(node(), pod("low", cpu="4", nodeName="n"), high)
    assert deleted_pods(late.run_pass()) == ["low"]
    late.delete_quietly("high")
    late.observe(high, EventType.DELETED)
    assert late.run_pass().writes == []
    assert not late.observe(node("other"))


def test_placement_evicts_pod_of_its_own_pass_in_the_next_one() -> None:
    gang = [member("m0", priority=30, cpu="1"), member("m1", priority=1, cpu="3")]
    late = LateEvents(node(), *gang, pod("middle", cpu="3", priority=20))
    first = late.run_pass()
    bound = [write.obj for write in first.writes if isinstance(write, Update)]
    assert sorted(obj["metadata"]["name"] for obj in bound) == ["m0", "m1"]
    assert (deleted_pods(first), updated_pods(first)) == ([], ["middle"])
    late.put(*bound)
    second = late.run_pass()
    assert (deleted_pods(second), updated_pods(second)) == (["m1"], ["middle", "m1"])


def test_placement_skips_outdated_condition_of_pod_that_it_evicts() -> None:
    waited = {"conditions": [make.condition("PodScheduled", status=False, reason="Unschedulable")]}
    low = pod("low", cpu="4", nodeName="n", status=waited)
    late = LateEvents(node(), low, pod("high", cpu="4", priority=1))
    result = late.run_pass()
    assert (deleted_pods(result), updated_pods(result)) == (["low"], ["high", "low"])


def test_placement_skips_outdated_condition_of_pod_that_is_gone() -> None:
    late = LateEvents(pod("gated", schedulingGates=GATES))
    late.delete_quietly("gated")
    assert late.run_pass().writes == []


def test_placement_forgets_condition_that_was_written_meanwhile() -> None:
    gated = pod("gated", schedulingGates=GATES)
    late = LateEvents(gated)
    assert late.is_due
    (write,) = late.run_pass().writes
    assert isinstance(write, UpdateStatus)
    late.stage.put(write.obj)
    assert late.run_pass().writes == []
    assert not late.observe(node())


def test_placement_reports_message_that_was_written_meanwhile() -> None:
    late = LateEvents(node(), pod("large", cpu="9"))
    (write,) = late.run_pass().writes
    assert isinstance(write, UpdateStatus)
    restarted = LateEvents(node(), pod("large", cpu="9"))
    restarted.stage.put(write.obj)
    result = restarted.run_pass()
    assert (result.writes, [event.reason for event in result.events]) == ([], ["FailedScheduling"])


def test_placement_withdraws_nomination_of_pod_bound_by_another_scheduler() -> None:
    late = LateEvents(node(), node("m", unschedulable=True), pod("low", cpu="4", nodeName="n"))
    high = pod("high", cpu="4", priority=1)
    late.put(high)
    assert deleted_pods(late.run_pass()) == ["low"]
    nominated = with_status(high, {"nominatedNodeName": "n"})
    late.put(nominated)
    late.put(with_path(nominated, ("spec", "nodeName"), "m"))
    late.observe(pod("low", cpu="4", nodeName="n"), EventType.DELETED)
    late.put(pod("other", cpu="4"))
    result = late.run_pass()
    assert updated_pods(result) == ["high"]
    assert [write.obj["spec"]["nodeName"] for write in result.writes if isinstance(write, Update)] == ["n"]
