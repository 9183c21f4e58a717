"""Placement binds pods, makes room for those of higher priority, and says why others wait."""

from collections.abc import Sequence
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, find_condition, is_true, key_of
from batchyard.interfaces.client import Delete, EventType, Update, UpdateStatus, WatchEvent, Write
from batchyard.placement.controller import PASS, PlacementController
from batchyard.placement.node_filters import AutoscalingProfile
from stage import Stage, stated
from unit.placement.placement_make import member, node, pod, pod_term, required

GOLD = {"matchLabels": {"tier": "gold"}}
NO_VICTIMS = "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
NO_HELP = "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."


def staged(*objects: Any) -> Stage:
    """A stage with placement and these objects, each put on it by itself."""
    stage = Stage(PlacementController())
    for obj in objects:
        stage.put(obj)
    return stage


def places(stage: Stage) -> dict[str, str]:
    """The nodes of all pods, by name."""
    return {obj["metadata"]["name"]: obj["spec"].get("nodeName", "") for obj in stage.client.list(scheme.POD)}


def nominated(stage: Stage, name: str) -> str:
    """Where room is held for a pod."""
    found: str = (stage.get(scheme.POD, name).get("status") or {}).get("nominatedNodeName", "")
    return found


def reported(stage: Stage, name: str) -> str:
    """Why a pod is not placed."""
    status, reason, message = stated(stage.get(scheme.POD, name), "PodScheduled")
    assert (status, reason) == ("False", "Unschedulable")
    return message


def leaving(stage: Stage) -> list[str]:
    """The pods that were asked to leave."""
    return [p["metadata"]["name"] for p in stage.client.list(scheme.POD) if "deletionTimestamp" in p["metadata"]]


def go(stage: Stage, *names: str) -> None:
    """Pods are gone at once."""
    for name in names:
        stage._submit(Delete(Key(scheme.POD, "team", name), grace=0))
    stage.settle()


def events_of(stage: Stage, name: str) -> list[tuple[str, str]]:
    """What was told about a pod."""
    return [(event.reason, event.message) for event in stage.events if event.regarding.name == name]


def passes(stage: Stage) -> Sequence[Write]:
    """What a controller that starts now writes in its first pass. The writes are not done."""
    return pass_of(PlacementController(), stage)


def pass_of(controller: PlacementController, stage: Stage) -> Sequence[Write]:
    """What a controller that hears of all that is there writes in its first pass. The writes are not done."""
    for kind in controller.kinds:
        for obj in stage.client.list(kind):
            list(controller.keys_for(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 1), make.NOW))
    return controller.reconcile(PASS, stage.client, make.NOW).writes


# --- placing ---


def test_a_pod_is_bound_and_that_is_told() -> None:
    stage = staged(node(), pod())
    assert places(stage) == {"p": "n"}
    assert events_of(stage, "p") == [("Scheduled", "Successfully assigned team/p to n")]


def test_pods_that_come_together_are_placed_one_after_the_other() -> None:
    stage = staged(node("a"), node("b"))
    stage.put(*[pod(f"p{i}", cpu="2") for i in range(4)])
    assert places(stage) == {"p0": "a", "p1": "b", "p2": "a", "p3": "b"}


def test_pods_that_have_ended_leave_their_room_to_others() -> None:
    stage = staged(node(), pod("old", cpu="4"), pod("new", cpu="4"))
    stage.put({**stage.get(scheme.POD, "old"), "status": {"phase": "Succeeded"}})
    assert places(stage) == {"old": "n", "new": "n"}


def test_why_a_pod_waits_is_told_once() -> None:
    stage = staged(node(), pod(cpu="9"))
    message = f"0/1 nodes are available: 1 Insufficient cpu. {NO_HELP}"
    assert reported(stage, "p") == message
    assert events_of(stage, "p") == [("FailedScheduling", message)]
    stage.put(pod("q"))
    assert len(events_of(stage, "p")) == 1


def test_without_nodes_there_is_nothing_to_say_of_preemption() -> None:
    assert reported(staged(pod()), "p") == "no nodes available to schedule pods"


def test_a_pod_that_waited_says_so_no_longer_once_it_is_bound() -> None:
    stage = staged(pod(), node())
    assert places(stage) == {"p": "n"}
    condition = find_condition(stage.get(scheme.POD, "p"), "PodScheduled")
    assert condition == {"type": "PodScheduled", "status": "True", "lastTransitionTime": make.stamp()}


def test_of_pods_that_ask_for_the_same_each_is_told_why_it_waits() -> None:
    stage = staged(node())
    stage.put(*[pod(f"p{i}", cpu="9") for i in range(3)])
    assert len({reported(stage, f"p{i}") for i in range(3)}) == 1


def test_gated_pods_say_so_and_wait_for_their_gates() -> None:
    stage = staged(node(), pod(schedulingGates=[{"name": "g"}]))
    assert places(stage) == {"p": ""}
    message = "Scheduling is blocked due to non-empty scheduling gates"
    assert stated(stage.get(scheme.POD, "p"), "PodScheduled") == ("False", "SchedulingGated", message)
    stage.put({**pod(), "status": stage.get(scheme.POD, "p")["status"]})
    assert places(stage) == {"p": "n"}


def test_pods_of_other_schedulers_are_let_be() -> None:
    stage = staged(node(), pod(schedulerName="mine"))
    assert places(stage) == {"p": ""}
    assert "status" not in stage.get(scheme.POD, "p")
    stage.put(pod("bound", schedulerName="mine", nodeName="n", cpu="4"), pod("q"))
    assert reported(stage, "q").startswith("0/1 nodes are available: 1 Insufficient cpu.")


def test_the_profile_is_the_clusters_or_that_of_the_scheduler_a_pod_names() -> None:
    stage = staged(node("a"), node("b"), pod("t", nodeName="a"))
    stage.put(pod("p", schedulerName="gke.io/optimize-utilization-scheduler"), pod("q"))
    assert places(stage) == {"t": "a", "p": "a", "q": "b"}
    filling = Stage(PlacementController(AutoscalingProfile.OPTIMIZE_UTILIZATION))
    filling.put(node("a"), node("b"), pod("t", nodeName="a"), pod("p"))
    assert places(filling) == {"t": "a", "p": "a"}


def test_labels_of_namespaces_are_known() -> None:
    affinity = required("podAffinity", pod_term(match={"a": "b"}, namespaceSelector={"matchLabels": {"x": "y"}}))
    stage = staged(
        make.namespace("other", x="y"), node(), pod("there", namespace="other", nodeName="n", labels={"a": "b"})
    )
    stage.put(pod(affinity=affinity))
    assert places(stage)["p"] == "n"
    stage.delete(scheme.NAMESPACE, "other", "")
    stage.put(pod("q", affinity=affinity))
    assert places(stage)["q"] == ""


def test_a_node_that_goes_takes_no_pods_any_more() -> None:
    stage = staged(node("a"), node("b"))
    stage.delete(scheme.NODE, "a", "")
    stage.put(pod())
    assert places(stage) == {"p": "b"}


def test_long_reasons_are_cut_in_events_only() -> None:
    taints = [[{"key": f"{'k' * 60}{i}", "effect": "NoSchedule"}] for i in range(20)]
    stage = staged(*[node(f"n{i}", taints=taint) for i, taint in enumerate(taints)], pod())
    ((_, note),) = events_of(stage, "p")
    assert len(reported(stage, "p")) > 1024
    assert (len(note), note[-4:]) == (1024, " ...")


# --- gangs ---


def test_a_gang_is_bound_as_a_whole_or_not_at_all() -> None:
    stage = staged(node("a"))
    stage.put(*[member(f"m{i}", cpu="2") for i in range(3)])
    assert places(stage) == {"m0": "", "m1": "", "m2": ""}
    assert reported(stage, "m0") == f"0/1 nodes are available: 1 Insufficient cpu. {NO_VICTIMS}"
    stage.put(node("b"))
    assert places(stage) == {"m0": "a", "m1": "b", "m2": "a"}


def test_members_unlike_the_one_without_a_place_are_told_so() -> None:
    stage = staged(node())
    stage.put(member("big", cpu="9"), member("small"))
    assert reported(stage, "small") == f"pod group is unschedulable: {reported(stage, 'big')}"


def test_two_gangs_do_not_hold_halves() -> None:
    stage = staged(node("a"), node("b"))
    gangs = [member(f"{gang}{i}", gang, cpu="4", created=i) for i in range(2) for gang in "xy"]
    stage.put(*gangs)
    assert places(stage) == {"x0": "a", "x1": "b", "y0": "", "y1": ""}
    go(stage, "x0", "x1")
    assert places(stage) == {"y0": "a", "y1": "b"}


def test_a_gang_that_does_not_fit_is_in_nobodys_way() -> None:
    stage = staged(node())
    stage.put(*[member(f"m{i}", cpu="4", priority=5) for i in range(2)], pod("p"))
    assert places(stage)["p"] == "n"


def test_a_member_that_is_replaced_is_placed_by_itself() -> None:
    stage = staged(node("a"), node("b"))
    stage.put(member("m0", cpu="4"), member("m1", cpu="4"))
    stage.delete(scheme.NODE, "b", "")
    go(stage, "m1")
    stage.put(member("m2", cpu="4"), member("m3", cpu="4"), node("c"))
    assert places(stage) == {"m0": "a", "m2": "c", "m3": ""}


# --- preemption ---


def test_a_pod_of_higher_priority_gets_the_room_of_others() -> None:
    stage = staged(node(), pod("low", cpu="4"), pod("high", priority=1))
    assert reported(stage, "high") == "0/1 nodes are available: 1 Insufficient cpu."
    assert (nominated(stage, "high"), leaving(stage)) == ("n", ["low"])
    message = "default-scheduler: preempting to accommodate a higher priority pod"
    assert stated(stage.get(scheme.POD, "low"), "DisruptionTarget") == ("True", "PreemptionByScheduler", message)
    assert ("Preempted", "Preempted by pod uid-high on node n") in events_of(stage, "low")
    go(stage, "low")
    assert (places(stage), nominated(stage, "high")) == ({"high": "n"}, "")


def test_the_room_is_held_until_it_is_free() -> None:
    stage = staged(node(), pod("low", cpu="3"), pod("high", cpu="4", priority=1))
    stage.put(pod("quick"), pod("equal", priority=1))
    assert places(stage) == {"low": "n", "high": "", "quick": "", "equal": ""}
    go(stage, "low")
    assert places(stage) == {"high": "n", "quick": "", "equal": ""}


def test_while_victims_leave_nobody_else_is_asked_and_nothing_new_is_told() -> None:
    stage = staged(node("a"), node("b"), pod("x", cpu="4"), pod("y", cpu="4", priority=1), pod("high", priority=2))
    assert leaving(stage) == ["x"]
    before = stage.get(scheme.POD, "high")
    stage.put(pod("other", cpu="9"))
    assert leaving(stage) == ["x"]
    assert stage.get(scheme.POD, "high") is before


def test_who_is_nominated_gives_way_to_higher_priority() -> None:
    stage = staged(node(), pod("low", cpu="4"), pod("high", cpu="4", priority=1), pod("higher", cpu="4", priority=2))
    assert (nominated(stage, "high"), nominated(stage, "higher")) == ("", "n")
    go(stage, "low")
    assert places(stage) == {"high": "", "higher": "n"}


def test_others_are_asked_when_the_node_on_which_room_is_held_goes() -> None:
    stage = staged(node("a"), node("b"), pod("x", cpu="4"), pod("y", cpu="4", priority=1), pod("high", priority=2))
    assert (nominated(stage, "high"), leaving(stage)) == ("a", ["x"])
    stage.delete(scheme.NODE, "a", "")
    assert (nominated(stage, "high"), leaving(stage)) == ("b", ["x", "y"])


def test_victims_leave_for_a_whole_gang_or_not_at_all() -> None:
    stage = staged(node("a"), node("b"), pod("x", cpu="4"), pod("y", cpu="4", priority=9))
    stage.put(member("m0", cpu="4", priority=5), member("m1", cpu="4", priority=5))
    assert (leaving(stage), nominated(stage, "m0")) == ([], "")
    stage.put(node("c"))
    assert (leaving(stage), nominated(stage, "m0"), nominated(stage, "m1")) == (["x"], "c", "a")
    stage.put(pod("quick"))
    assert places(stage)["quick"] == ""
    go(stage, "x")
    assert (places(stage)["m0"], places(stage)["m1"]) == ("a", "c")


def test_a_gang_that_lost_the_node_it_waited_for_holds_no_room() -> None:
    stage = staged(node("a"), node("b"), pod("x", cpu="4"))
    stage.put(member("m0", cpu="4", priority=5), member("m1", cpu="4", priority=5))
    assert (nominated(stage, "m0"), nominated(stage, "m1"), leaving(stage)) == ("b", "a", ["x"])
    stage.delete(scheme.NODE, "a", "")
    assert (nominated(stage, "m0"), nominated(stage, "m1")) == ("", "")
    stage.put(pod("quick"))
    assert places(stage)["quick"] == "b"


def test_a_pod_that_must_not_preempt_waits() -> None:
    stage = staged(node(), pod("low", cpu="4"), pod("high", priority=1, preemptionPolicy="Never"))
    assert (leaving(stage), nominated(stage, "high")) == ([], "")
    assert reported(stage, "high").endswith("preemption: not eligible due to preemptionPolicy=Never.")


# --- restarts and writes that fail ---


def test_a_controller_that_starts_anew_has_nothing_to_add() -> None:
    stage = staged(node("a"), node("b"), pod("low", cpu="4"), pod("other", cpu="4", priority=3))
    stage.put(pod("high", priority=1), pod("never", cpu="9"), pod("gated", schedulingGates=[{"name": "g"}]))
    assert nominated(stage, "high") == "a"
    writes = passes(stage)
    assert [w.obj["metadata"]["name"] for w in writes if isinstance(w, UpdateStatus)] == ["high"]
    assert len(writes) == 1  # it tells that those who leave are still on their way


def test_what_failed_to_be_written_is_decided_again() -> None:
    stage = Stage()
    stage.put(node(), pod("p"), pod("q", cpu="3"))
    controller = PlacementController()
    for obj in (*stage.client.list(scheme.NODE), *stage.client.list(scheme.POD)):
        list(controller.keys_for(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 1), make.NOW))
    first = controller.reconcile(PASS, stage.client, make.NOW).writes
    again = controller.reconcile(PASS, stage.client, make.NOW).writes
    assert [type(write) for write in first] == [Update, Update]
    assert again == first
    assert controller.reconcile(PASS, stage.client, make.NOW).writes == first


def test_a_preemption_that_was_written_in_part_is_completed() -> None:
    stage = staged(node(), pod("low", cpu="4"))
    high = {**pod("high", priority=1), "status": {"nominatedNodeName": "n"}}
    quiet = Stage()
    quiet.put(*stage.client.list(scheme.NODE), *stage.client.list(scheme.POD), high)
    writes = passes(quiet)
    deleted = [write.key.name for write in writes if isinstance(write, Delete)]
    assert deleted == ["low"]


def test_victims_that_were_not_asked_after_all_are_asked_again() -> None:
    stage = Stage()
    stage.put(node(), pod("low", cpu="4", nodeName="n"), pod("high", priority=1))
    controller = PlacementController()
    for obj in (*stage.client.list(scheme.NODE), *stage.client.list(scheme.POD)):
        list(controller.keys_for(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 1), make.NOW))
    for _ in range(2):
        writes = controller.reconcile(PASS, stage.client, make.NOW).writes
        assert [write.key.name for write in writes if isinstance(write, Delete)] == ["low"]
        (told_first,) = [w.obj for w in writes if isinstance(w, UpdateStatus) and w.obj["spec"].get("nodeName")]
        assert is_true(told_first, "DisruptionTarget")


# --- what wakes ---


def test_who_wants_company_is_placed_when_its_namespace_has_the_labels_for_it() -> None:
    near = required("podAffinity", pod_term(namespaceSelector=GOLD))
    stage = staged(make.namespace("other"), node(), pod("friend", namespace="other", labels={"app": "a"}))
    stage.put(pod("p", affinity=near))
    assert places(stage)["p"] == ""
    stage.put(make.namespace("other", tier="gold"))
    assert places(stage)["p"] == "n"


@pytest.mark.parametrize("change", ["labels", "goes"])
def test_who_is_kept_away_by_the_labels_of_a_namespace_is_placed_without_them(change: str) -> None:
    far = required("podAntiAffinity", pod_term(namespaceSelector=GOLD))
    stage = staged(make.namespace("team", tier="gold"), node(), pod("t", namespace="other", affinity=far))
    stage.put(pod("p", labels={"app": "a"}))
    assert places(stage)["p"] == ""
    if change == "labels":
        stage.put(make.namespace("team"))
    else:
        stage.delete(scheme.NAMESPACE, "team", "")
    assert places(stage)["p"] == "n"


def test_who_was_kept_away_is_placed_when_the_other_has_other_labels() -> None:
    far = required("podAntiAffinity", pod_term("topology.kubernetes.io/zone"))
    other = pod("t", labels={"app": "a"}, nodeName="m", cpu="4")
    stage = staged(node(), node("m"), other, pod("p", affinity=far))
    assert places(stage)["p"] == ""
    stage.put({**other, "metadata": {**other["metadata"], "labels": {"app": "b"}}})
    assert places(stage)["p"] == "n"


# --- gangs of pods of several priorities ---


def test_each_pod_of_a_gang_makes_only_those_of_lower_priority_leave() -> None:
    middle = [pod(f"t{i}", cpu="4", nodeName=f"n{i}", priority=5) for i in range(2)]
    stage = staged(node("n0"), node("n1"), *middle)
    stage.put(member("high", cpu="4", priority=9), member("low", cpu="4", priority=1))
    assert leaving(stage) == []
    go(stage, "t1")
    assert leaving(stage) == ["t0"]
    go(stage, "t0")
    assert sorted((places(stage)["high"], places(stage)["low"])) == ["n0", "n1"]


def test_room_is_held_for_all_pods_of_a_gang_on_one_node() -> None:
    controller = PlacementController()
    stage = Stage()
    stage.put(node(), *[pod(f"t{i}", cpu="2", nodeName="n") for i in range(2)])
    stage.put(member("a", cpu="2", priority=1), member("b", cpu="2", priority=2))
    pass_of(controller, stage)
    assert [controller._index.nodes.nomination_of(f"uid-{name}") for name in "ab"] == ["n", "n"]


def test_no_pod_of_a_gang_leaves_for_another_of_it() -> None:
    stage = staged(node("n0"), node("n1"), pod("t", cpu="4", nodeName="n1", priority=9))
    stage.put(member("high", cpu="4", priority=9), member("low", cpu="4", priority=1))
    assert places(stage) == {"t": "n1", "high": "", "low": ""}
    assert (nominated(stage, "high"), nominated(stage, "low")) == ("", "")
