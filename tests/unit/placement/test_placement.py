"""Placement binds pods, preempts for pods of higher priority, and reports why pods are pending."""

from collections.abc import Sequence
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, find_condition, is_true, key_of
from batchyard.interfaces.client import Delete, EventType, Update, UpdateStatus, WatchEvent, Write
from batchyard.placement.controller import PASS_KEY, PlacementController
from batchyard.placement.node_filters import AutoscalingProfile
from stage import Stage, condition_state
from unit.placement.placement_make import HOST, member, node, pod, pod_term, required

GOLD = {"matchLabels": {"tier": "gold"}}
NO_VICTIMS = "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
NO_HELP = "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."


def placement_stage(*objects: Any) -> Stage:
    """A stage with placement; the objects are added one at a time."""
    stage = Stage(PlacementController())
    for obj in objects:
        stage.put(obj)
    return stage


def places(stage: Stage) -> dict[str, str]:
    """The nodes of all pods, by name."""
    return {obj["metadata"]["name"]: obj["spec"].get("nodeName", "") for obj in stage.client.list(scheme.POD)}


def nominated_node(stage: Stage, name: str) -> str:
    """The nominated node of a pod."""
    result: str = (stage.get(scheme.POD, name).get("status") or {}).get("nominatedNodeName", "")
    return result


def unschedulable_message(stage: Stage, name: str) -> str:
    """The message of an unschedulable pod."""
    status, reason, message = condition_state(stage.get(scheme.POD, name), "PodScheduled")
    assert (status, reason) == ("False", "Unschedulable")
    return message


def terminating_pods(stage: Stage) -> list[str]:
    """The pods with a deletion timestamp."""
    return [p["metadata"]["name"] for p in stage.client.list(scheme.POD) if "deletionTimestamp" in p["metadata"]]


def budget(app: str) -> make.Obj:
    """A PodDisruptionBudget of pods with this label that allows no disruption."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": make.metadata(app),
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": 0},
    }


def delete_now(stage: Stage, *names: str) -> None:
    """Delete pods without grace period."""
    for name in names:
        stage._submit(Delete(Key(scheme.POD, "team", name), grace_period_seconds=0))
    stage.settle()


def events_of(stage: Stage, name: str) -> list[tuple[str, str]]:
    """The events of a pod."""
    return [(event.reason, event.message) for event in stage.events if event.regarding.name == name]


def passes(stage: Stage) -> Sequence[Write]:
    """The writes of the first pass of a new controller. The writes are not applied."""
    return pass_of(PlacementController(), stage)


def pass_of(controller: PlacementController, stage: Stage) -> Sequence[Write]:
    """The writes of the first pass of a controller that observes all objects. The writes are not applied."""
    for kind in controller.kinds:
        for obj in stage.client.list(kind):
            list(controller.keys_for(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 1), make.NOW))
    return controller.reconcile(PASS_KEY, stage.client, make.NOW).writes


# --- placing ---


def test_placement_binds_pod_and_reports_scheduled_event() -> None:
    stage = placement_stage(node(), pod())
    assert places(stage) == {"p": "n"}
    assert events_of(stage, "p") == [("Scheduled", "Successfully assigned team/p to n")]


def test_placement_binds_simultaneous_pods_sequentially() -> None:
    stage = placement_stage(node("a"), node("b"))
    stage.put(*[pod(f"p{i}", cpu="2") for i in range(4)])
    assert places(stage) == {"p0": "a", "p1": "b", "p2": "a", "p3": "b"}


def test_placement_reuses_capacity_of_finished_pods() -> None:
    stage = placement_stage(node(), pod("old", cpu="4"), pod("new", cpu="4"))
    stage.put({**stage.get(scheme.POD, "old"), "status": {"phase": "Succeeded"}})
    assert places(stage) == {"old": "n", "new": "n"}


def test_placement_reports_failed_scheduling_once() -> None:
    stage = placement_stage(node(), pod(cpu="9"))
    message = f"0/1 nodes are available: 1 Insufficient cpu. {NO_HELP}"
    assert unschedulable_message(stage, "p") == message
    assert events_of(stage, "p") == [("FailedScheduling", message)]
    stage.put(pod("q"))
    assert len(events_of(stage, "p")) == 1


def test_placement_message_without_nodes_omits_preemption() -> None:
    assert unschedulable_message(placement_stage(pod()), "p") == "no nodes available to schedule pods"


def test_placement_sets_pod_scheduled_true_after_binding() -> None:
    stage = placement_stage(pod(), node())
    assert places(stage) == {"p": "n"}
    condition = find_condition(stage.get(scheme.POD, "p"), "PodScheduled")
    assert condition == {"type": "PodScheduled", "status": "True", "lastTransitionTime": make.stamp()}


def test_placement_reports_reason_on_each_identical_pending_pod() -> None:
    stage = placement_stage(node())
    stage.put(*[pod(f"p{i}", cpu="9") for i in range(3)])
    assert len({unschedulable_message(stage, f"p{i}") for i in range(3)}) == 1


def test_placement_reports_scheduling_gated_until_gates_are_removed() -> None:
    stage = placement_stage(node(), pod(schedulingGates=[{"name": "g"}]))
    assert places(stage) == {"p": ""}
    message = "Scheduling is blocked due to non-empty scheduling gates"
    assert condition_state(stage.get(scheme.POD, "p"), "PodScheduled") == ("False", "SchedulingGated", message)
    stage.put({**pod(), "status": stage.get(scheme.POD, "p")["status"]})
    assert places(stage) == {"p": "n"}


def test_placement_ignores_pods_of_other_schedulers() -> None:
    stage = placement_stage(node(), pod(schedulerName="mine"))
    assert places(stage) == {"p": ""}
    assert "status" not in stage.get(scheme.POD, "p")
    stage.put(pod("bound", schedulerName="mine", nodeName="n", cpu="4"), pod("q"))
    assert unschedulable_message(stage, "q").startswith("0/1 nodes are available: 1 Insufficient cpu.")


def test_placement_uses_cluster_profile_unless_scheduler_name_selects_another() -> None:
    stage = placement_stage(node("a"), node("b"), pod("t", nodeName="a"))
    stage.put(pod("p", schedulerName="gke.io/optimize-utilization-scheduler"), pod("q"))
    assert places(stage) == {"t": "a", "p": "a", "q": "b"}
    filling = Stage(PlacementController(AutoscalingProfile.OPTIMIZE_UTILIZATION))
    filling.put(node("a"), node("b"), pod("t", nodeName="a"), pod("p"))
    assert places(filling) == {"t": "a", "p": "a"}


def test_placement_affinity_matches_namespace_labels() -> None:
    affinity = required("podAffinity", pod_term(match={"a": "b"}, namespaceSelector={"matchLabels": {"x": "y"}}))
    stage = placement_stage(
        make.namespace("other", x="y"), node(), pod("there", namespace="other", nodeName="n", labels={"a": "b"})
    )
    stage.put(pod(affinity=affinity))
    assert places(stage)["p"] == "n"
    stage.delete(scheme.NAMESPACE, "other", "")
    stage.put(pod("q", affinity=affinity))
    assert places(stage)["q"] == ""


def test_placement_skips_deleted_node() -> None:
    stage = placement_stage(node("a"), node("b"))
    stage.delete(scheme.NODE, "a", "")
    stage.put(pod())
    assert places(stage) == {"p": "b"}


def test_placement_truncates_long_messages_in_events_only() -> None:
    taints = [[{"key": f"{'k' * 60}{i}", "effect": "NoSchedule"}] for i in range(20)]
    stage = placement_stage(*[node(f"n{i}", taints=taint) for i, taint in enumerate(taints)], pod())
    ((_, note),) = events_of(stage, "p")
    assert len(unschedulable_message(stage, "p")) > 1024
    assert (len(note), note[-4:]) == (1024, " ...")


# --- gangs ---


def test_placement_binds_all_pods_of_gang_or_none() -> None:
    stage = placement_stage(node("a"))
    stage.put(*[member(f"m{i}", cpu="2") for i in range(3)])
    assert places(stage) == {"m0": "", "m1": "", "m2": ""}
    assert unschedulable_message(stage, "m0") == f"0/1 nodes are available: 1 Insufficient cpu. {NO_VICTIMS}"
    stage.put(node("b"))
    assert places(stage) == {"m0": "a", "m1": "b", "m2": "a"}


def test_placement_reports_unschedulable_pod_group_on_other_members() -> None:
    stage = placement_stage(node())
    stage.put(member("big", cpu="9"), member("small"))
    assert unschedulable_message(stage, "small") == f"pod group is unschedulable: {unschedulable_message(stage, 'big')}"


def test_placement_does_not_split_capacity_between_two_gangs() -> None:
    stage = placement_stage(node("a"), node("b"))
    gangs = [member(f"{gang}{i}", gang, cpu="4", created=i) for i in range(2) for gang in "xy"]
    stage.put(*gangs)
    assert places(stage) == {"x0": "a", "x1": "b", "y0": "", "y1": ""}
    delete_now(stage, "x0", "x1")
    assert places(stage) == {"y0": "a", "y1": "b"}


def test_placement_unschedulable_gang_does_not_block_lower_priority_pod() -> None:
    stage = placement_stage(node())
    stage.put(*[member(f"m{i}", cpu="4", priority=5) for i in range(2)], pod("p"))
    assert places(stage)["p"] == "n"


def test_placement_binds_replacement_member_of_running_gang_individually() -> None:
    stage = placement_stage(node("a"), node("b"))
    stage.put(member("m0", cpu="4"), member("m1", cpu="4"))
    stage.delete(scheme.NODE, "b", "")
    delete_now(stage, "m1")
    stage.put(member("m2", cpu="4"), member("m3", cpu="4"), node("c"))
    assert places(stage) == {"m0": "a", "m2": "c", "m3": ""}


# --- preemption ---


def test_placement_preempts_pod_of_lower_priority() -> None:
    stage = placement_stage(node(), pod("low", cpu="4"), pod("high", priority=1))
    assert unschedulable_message(stage, "high") == "0/1 nodes are available: 1 Insufficient cpu."
    assert (nominated_node(stage, "high"), terminating_pods(stage)) == ("n", ["low"])
    message = "default-scheduler: preempting to accommodate a higher priority pod"
    assert condition_state(stage.get(scheme.POD, "low"), "DisruptionTarget") == (
        "True",
        "PreemptionByScheduler",
        message,
    )
    assert ("Preempted", "Preempted by pod uid-high on node n") in events_of(stage, "low")
    delete_now(stage, "low")
    assert (places(stage), nominated_node(stage, "high")) == ({"high": "n"}, "")


def test_placement_keeps_nominated_capacity_until_victim_is_gone() -> None:
    stage = placement_stage(node(), pod("low", cpu="3"), pod("high", cpu="4", priority=1))
    stage.put(pod("quick"), pod("equal", priority=1))
    assert places(stage) == {"low": "n", "high": "", "quick": "", "equal": ""}
    delete_now(stage, "low")
    assert places(stage) == {"high": "n", "quick": "", "equal": ""}


def test_placement_selects_no_further_victims_while_preemption_is_pending() -> None:
    stage = placement_stage(
        node("a"), node("b"), pod("x", cpu="4"), pod("y", cpu="4", priority=1), pod("high", priority=2)
    )
    assert terminating_pods(stage) == ["x"]
    before = stage.get(scheme.POD, "high")
    stage.put(pod("other", cpu="9"))
    assert terminating_pods(stage) == ["x"]
    assert stage.get(scheme.POD, "high") is before


def test_placement_moves_nomination_to_pod_of_higher_priority() -> None:
    stage = placement_stage(
        node(), pod("low", cpu="4"), pod("high", cpu="4", priority=1), pod("higher", cpu="4", priority=2)
    )
    assert (nominated_node(stage, "high"), nominated_node(stage, "higher")) == ("", "n")
    delete_now(stage, "low")
    assert places(stage) == {"high": "", "higher": "n"}


def test_placement_preempts_elsewhere_after_nominated_node_is_deleted() -> None:
    stage = placement_stage(
        node("a"), node("b"), pod("x", cpu="4"), pod("y", cpu="4", priority=1), pod("high", priority=2)
    )
    assert (nominated_node(stage, "high"), terminating_pods(stage)) == ("a", ["x"])
    stage.delete(scheme.NODE, "a", "")
    assert (nominated_node(stage, "high"), terminating_pods(stage)) == ("b", ["x", "y"])


def test_placement_preempts_for_complete_gang_only() -> None:
    stage = placement_stage(node("a"), node("b"), pod("x", cpu="4"), pod("y", cpu="4", priority=9))
    stage.put(member("m0", cpu="4", priority=5), member("m1", cpu="4", priority=5))
    assert (terminating_pods(stage), nominated_node(stage, "m0")) == ([], "")
    stage.put(node("c"))
    assert (terminating_pods(stage), nominated_node(stage, "m0"), nominated_node(stage, "m1")) == (["x"], "c", "a")
    stage.put(pod("quick"))
    assert places(stage)["quick"] == ""
    delete_now(stage, "x")
    assert (places(stage)["m0"], places(stage)["m1"]) == ("a", "c")


def test_placement_clears_nominations_of_gang_after_node_deletion() -> None:
    stage = placement_stage(node("a"), node("b"), pod("x", cpu="4"))
    stage.put(member("m0", cpu="4", priority=5), member("m1", cpu="4", priority=5))
    assert (nominated_node(stage, "m0"), nominated_node(stage, "m1"), terminating_pods(stage)) == ("b", "a", ["x"])
    stage.delete(scheme.NODE, "a", "")
    assert (nominated_node(stage, "m0"), nominated_node(stage, "m1")) == ("", "")
    stage.put(pod("quick"))
    assert places(stage)["quick"] == "b"


def test_placement_does_not_preempt_for_preemption_policy_never() -> None:
    stage = placement_stage(node(), pod("low", cpu="4"), pod("high", priority=1, preemptionPolicy="Never"))
    assert (terminating_pods(stage), nominated_node(stage, "high")) == ([], "")
    assert unschedulable_message(stage, "high").endswith("preemption: not eligible due to preemptionPolicy=Never.")


def test_placement_spares_pods_of_budgets_until_their_deletion() -> None:
    stage = placement_stage(
        node(cpu="3"), budget("b"), budget("c"), *[pod(name, labels={"app": name}) for name in "abc"]
    )
    stage.put(pod("high", priority=1))
    assert terminating_pods(stage) == ["a"]
    stage.delete(scheme.POD_DISRUPTION_BUDGET, "b")
    stage.put(pod("other", priority=1))
    assert terminating_pods(stage) == ["a", "b"]


# --- restarts and writes that fail ---


def test_restarted_placement_writes_nothing_but_pending_preemption_status() -> None:
    stage = placement_stage(node("a"), node("b"), pod("low", cpu="4"), pod("other", cpu="4", priority=3))
    stage.put(pod("high", priority=1), pod("never", cpu="9"), pod("gated", schedulingGates=[{"name": "g"}]))
    assert nominated_node(stage, "high") == "a"
    writes = passes(stage)
    assert [w.obj["metadata"]["name"] for w in writes if isinstance(w, UpdateStatus)] == ["high"]
    assert len(writes) == 1  # it reports that the victims still terminate


def test_placement_repeats_writes_that_failed() -> None:
    stage = Stage()
    stage.put(node(), pod("p"), pod("q", cpu="3"))
    controller = PlacementController()
    for obj in (*stage.client.list(scheme.NODE), *stage.client.list(scheme.POD)):
        list(controller.keys_for(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 1), make.NOW))
    first = controller.reconcile(PASS_KEY, stage.client, make.NOW).writes
    again = controller.reconcile(PASS_KEY, stage.client, make.NOW).writes
    assert [type(write) for write in first] == [Update, Update]
    assert again == first
    assert controller.reconcile(PASS_KEY, stage.client, make.NOW).writes == first


def test_placement_completes_partly_written_preemption() -> None:
    stage = placement_stage(node(), pod("low", cpu="4"))
    high = {**pod("high", priority=1), "status": {"nominatedNodeName": "n"}}
    quiet = Stage()
    quiet.put(*stage.client.list(scheme.NODE), *stage.client.list(scheme.POD), high)
    writes = passes(quiet)
    deleted = [write.key.name for write in writes if isinstance(write, Delete)]
    assert deleted == ["low"]


def test_placement_repeats_failed_deletion_of_victims() -> None:
    stage = Stage()
    stage.put(node(), pod("low", cpu="4", nodeName="n"), pod("high", priority=1))
    controller = PlacementController()
    for obj in (*stage.client.list(scheme.NODE), *stage.client.list(scheme.POD)):
        list(controller.keys_for(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 1), make.NOW))
    for _ in range(2):
        writes = controller.reconcile(PASS_KEY, stage.client, make.NOW).writes
        assert [write.key.name for write in writes if isinstance(write, Delete)] == ["low"]
        (victim,) = [w.obj for w in writes if isinstance(w, UpdateStatus) and w.obj["spec"].get("nodeName")]
        assert is_true(victim, "DisruptionTarget")


# --- retries after changes ---


def test_placement_retries_affinity_after_namespace_labels_change() -> None:
    near = required("podAffinity", pod_term(namespaceSelector=GOLD))
    stage = placement_stage(make.namespace("other"), node(), pod("friend", namespace="other", labels={"app": "a"}))
    stage.put(pod("p", affinity=near))
    assert places(stage)["p"] == ""
    stage.put(make.namespace("other", tier="gold"))
    assert places(stage)["p"] == "n"


@pytest.mark.parametrize("change", ["labels", "goes"])
def test_placement_retries_pod_after_namespace_stops_matching_anti_affinity(change: str) -> None:
    far = required("podAntiAffinity", pod_term(namespaceSelector=GOLD))
    stage = placement_stage(make.namespace("team", tier="gold"), node(), pod("t", namespace="other", affinity=far))
    stage.put(pod("p", labels={"app": "a"}))
    assert places(stage)["p"] == ""
    if change == "labels":
        stage.put(make.namespace("team"))
    else:
        stage.delete(scheme.NAMESPACE, "team", "")
    assert places(stage)["p"] == "n"


def test_placement_retries_anti_affinity_after_pod_labels_change() -> None:
    far = required("podAntiAffinity", pod_term("topology.kubernetes.io/zone"))
    other = pod("t", labels={"app": "a"}, nodeName="m", cpu="4")
    stage = placement_stage(node(), node("m"), other, pod("p", affinity=far))
    assert places(stage)["p"] == ""
    stage.put({**other, "metadata": {**other["metadata"], "labels": {"app": "b"}}})
    assert places(stage)["p"] == "n"


# --- gangs of pods of several priorities ---


def test_placement_gang_member_preempts_lower_priority_than_its_own_only() -> None:
    middle = [pod(f"t{i}", cpu="4", nodeName=f"n{i}", priority=5) for i in range(2)]
    stage = placement_stage(node("n0"), node("n1"), *middle)
    stage.put(member("high", cpu="4", priority=9), member("low", cpu="4", priority=1))
    assert terminating_pods(stage) == []
    delete_now(stage, "t1")
    assert terminating_pods(stage) == ["t0"]
    delete_now(stage, "t0")
    assert sorted((places(stage)["high"], places(stage)["low"])) == ["n0", "n1"]


def test_placement_nominates_all_gang_members_on_same_node() -> None:
    controller = PlacementController()
    stage = Stage()
    stage.put(node(), *[pod(f"t{i}", cpu="2", nodeName="n") for i in range(2)])
    stage.put(member("a", cpu="2", priority=1), member("b", cpu="2", priority=2))
    pass_of(controller, stage)
    assert [controller._index.nodes.nominated_node_of(f"uid-{name}") for name in "ab"] == ["n", "n"]


def test_placement_retries_gang_whose_affinity_target_can_preempt_on_new_node() -> None:
    beside = member("m", cpu="2", affinity=required("podAffinity", pod_term(HOST)))
    leader = member("leader", cpu="2", labels={"app": "a"}, priority=9)
    stage = placement_stage(node("a"), pod("blocker", cpu="4", nodeName="a", priority=20), beside, leader)
    assert unschedulable_message(stage, "m").startswith("pod group is unschedulable: 0/1 nodes are available")
    stage.put(pod("victim", cpu="4", nodeName="b", priority=5), node("b"))
    assert [nominated_node(stage, name) for name in ("m", "leader")] == ["b", "b"]
    assert terminating_pods(stage) == ["victim"]


def test_placement_gang_does_not_preempt_its_own_members() -> None:
    stage = placement_stage(node("n0"), node("n1"), pod("t", cpu="4", nodeName="n1", priority=9))
    stage.put(member("high", cpu="4", priority=9), member("low", cpu="4", priority=1))
    assert places(stage) == {"t": "n1", "high": "", "low": ""}
    assert (nominated_node(stage, "high"), nominated_node(stage, "low")) == ("", "")
