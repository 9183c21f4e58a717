"""The states of a node: conditions, taints, cordon and drain."""

from typing import Any

import pytest

import make
from batchyard.api import well_known
from batchyard.nodes import conditions
from stage import condition_state
from unit.nodes.node_make import node, owner, pod, taint

EVERYTHING = conditions.DrainOptions(force=True, ignore_daemonsets=True, delete_emptydir_data=True)


def keys(obj: Any) -> list[tuple[str, str]]:
    return [(t["key"], t["effect"]) for t in conditions.taints_of(obj)]


def names(pods: Any) -> list[str]:
    return [p["metadata"]["name"] for p in pods]


def test_readiness_returns_status_of_ready_condition() -> None:
    assert conditions.readiness(node()) == "True"
    assert conditions.readiness(node(ready="")) == ""


def test_node_without_heartbeats_has_unknown_conditions() -> None:
    silent = conditions.with_lost_heartbeats(node(), make.at(50))
    expected = ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    assert condition_state(silent, "Ready") == condition_state(silent, "MemoryPressure") == expected
    assert condition_state(silent, "DiskPressure") == (
        "Unknown",
        "NodeStatusNeverUpdated",
        "Kubelet never posted node status.",
    )
    ready = next(c for c in silent["status"]["conditions"] if c["type"] == "Ready")
    assert ready["lastTransitionTime"] == make.stamp(50)
    assert conditions.with_lost_heartbeats(silent, make.at(60)) is silent


def test_resumed_heartbeats_restore_unknown_conditions() -> None:
    back = conditions.with_resumed_heartbeats(conditions.with_lost_heartbeats(node(), make.at(50)), make.at(90))
    assert condition_state(back, "Ready") == ("True", "KubeletReady", "kubelet is posting ready status")
    assert condition_state(back, "PIDPressure") == (
        "False",
        "KubeletHasSufficientPID",
        "kubelet has sufficient PID available",
    )
    assert conditions.with_resumed_heartbeats(back, make.at(100)) is back


def test_resumed_heartbeats_keep_conditions_of_other_writers() -> None:
    unready = conditions.with_resumed_heartbeats(node(ready="False"), make.at(5))
    assert conditions.readiness(unready) == "False"


def test_node_that_shuts_down_is_not_ready() -> None:
    closing = conditions.with_shutdown(node(), make.at(5))
    assert condition_state(closing, "Ready") == ("False", "KubeletNotReady", "node is shutting down")
    assert conditions.with_shutdown(closing, make.at(6)) is closing


@pytest.mark.parametrize(
    ("ready", "taints"),
    [
        ("True", []),
        ("False", [(well_known.NOT_READY, "NoSchedule")]),
        ("Unknown", [(well_known.UNREACHABLE, "NoSchedule")]),
    ],
)
def test_conditions_become_noschedule_taints(ready: str, taints: list[tuple[str, str]]) -> None:
    assert keys(conditions.with_taints(node(ready=ready), None, make.NOW)) == taints


def test_foreign_taints_stay_and_stale_taints_are_removed() -> None:
    gpu, stale = taint("nvidia.com/gpu", "NoSchedule", None), taint(well_known.NOT_READY, "NoSchedule")
    tainted = conditions.with_taints(node(taints=[gpu, stale, taint(well_known.NOT_READY)]), None, make.NOW)
    assert tainted["spec"]["taints"] == [gpu]


def test_noexecute_taint_is_replaced_when_condition_changes() -> None:
    unready = node(ready="Unknown", taints=[taint(well_known.NOT_READY)])
    assert conditions.required_no_execute_taint_key(unready) == well_known.UNREACHABLE
    tainted = conditions.with_taints(unready, well_known.UNREACHABLE, make.at(7))
    assert keys(tainted) == [(well_known.UNREACHABLE, "NoSchedule"), (well_known.UNREACHABLE, "NoExecute")]
    assert conditions.unready_taint_time(tainted) == make.at(7)
    assert conditions.with_taints(tainted, well_known.UNREACHABLE, make.at(9)) is tainted


def test_noexecute_taint_gets_time_added() -> None:
    tainted = conditions.with_taints(node(taints=[taint("maintenance", since=None)]), None, make.at(5))
    assert tainted["spec"]["taints"] == [taint("maintenance", since=5)]
    assert not conditions.has_unready_taint(tainted)


def test_node_without_taints_has_no_taints_field() -> None:
    cured = conditions.with_taints(node(taints=[taint(well_known.UNREACHABLE, "NoSchedule")]), None, make.NOW)
    assert "taints" not in cured["spec"]


def test_cordoned_node_is_tainted_and_can_be_uncordoned() -> None:
    closed = conditions.with_unschedulable(node())
    assert keys(conditions.with_taints(closed, None, make.NOW)) == [(well_known.UNSCHEDULABLE, "NoSchedule")]
    assert conditions.with_unschedulable(closed) is closed
    opened = conditions.with_unschedulable(closed, unschedulable=False)
    assert "unschedulable" not in opened["spec"]


def test_drain_evicts_controlled_and_ended_pods() -> None:
    job, ended = pod("a", metadata={"ownerReferences": owner("Job", "j")}), pod("b", status={"phase": "Failed"})
    drain = conditions.plan_drain([job, ended], conditions.DrainOptions())
    assert (names(drain.evicted_pods), drain.refusals) == (["a", "b"], [])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "cannot delete Pods that declare no controller (use --force to override)"),
        (
            {"metadata": {"ownerReferences": owner("DaemonSet", "d")}},
            "DaemonSet-managed Pods (use --ignore-daemonsets to ignore)",
        ),
        (
            {"volumes": [{"name": "v", "emptyDir": {}}]},
            "Pods with local storage (use --delete-emptydir-data to override)",
        ),
    ],
)
def test_drain_refuses_pods_that_would_lose_data(spec: Any, words: str) -> None:
    (refused,) = conditions.plan_drain([pod(**spec)], conditions.DrainOptions()).refusals
    assert refused[1] == words
    assert conditions.plan_drain([pod(**spec)], EVERYTHING).refusals == []


def test_drain_skips_daemonset_pods_and_mirror_pods() -> None:
    daemon = pod("d", metadata={"ownerReferences": owner("DaemonSet", "d")})
    mirror = pod("m", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}})
    assert names(conditions.plan_drain([daemon, mirror, pod("bare")], EVERYTHING).evicted_pods) == ["bare"]
