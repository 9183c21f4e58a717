"""The states of a pod."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Key
from batchyard.api.views import pods
from batchyard.nodes.pods import PodsByNode
from stage import condition_state
from unit.nodes.node_make import pod, running, taint, toleration

NOT_READY = "node.kubernetes.io/not-ready"


def key_named(name: str) -> Key:
    return Key("Pod", "team", name)


def test_pod_without_status_is_pending() -> None:
    assert pods.phase(pod()) == "Pending"
    assert not pods.is_terminal(pod())


@pytest.mark.parametrize(("phase", "ended"), [("Running", False), ("Succeeded", True), ("Failed", True)])
def test_pod_is_terminal_when_it_succeeded_or_failed(phase: str, ended: bool) -> None:
    assert pods.is_terminal(pod(status={"phase": phase})) is ended


def test_deleted_at_is_grace_period_before_deletion_timestamp() -> None:
    deleted = pod(metadata={"deletionTimestamp": make.stamp(40), "deletionGracePeriodSeconds": 30})
    assert pods.deleted_at(deleted) == make.at(10)
    assert pods.deleted_at(pod()) is None


def test_ended_pod_with_zero_grace_period_is_held_only_by_finalizers() -> None:
    deleted = {"deletionTimestamp": make.stamp(), "deletionGracePeriodSeconds": 0}
    assert pods.has_only_finalizers_left(pod(status={"phase": "Failed"}, metadata=deleted))
    assert not pods.has_only_finalizers_left(pod(status=running(), metadata=deleted))
    with_time = {**deleted, "deletionGracePeriodSeconds": 30}
    assert not pods.has_only_finalizers_left(pod(status={"phase": "Failed"}, metadata=with_time))


def test_failed_pod_keeps_status_and_gets_disruption_target() -> None:
    failed = pods.with_failed_phase(pod(status=running()), pods.DISRUPTION_BY_POD_GC, make.at(5))
    assert failed["status"]["phase"] == "Failed"
    assert condition_state(failed, "DisruptionTarget") == ("True", "DeletionByPodGC", "PodGC: node no longer exists")
    assert failed["status"]["startTime"] == make.stamp()


def test_ended_pod_is_not_marked_as_failed() -> None:
    ended = pod(status={"phase": "Succeeded"})
    assert pods.with_failed_phase(ended, pods.DISRUPTION_BY_POD_GC, make.NOW) is ended


def test_not_ready_changes_only_ready_condition() -> None:
    marked = pods.with_ready_false(pod(status=running()), make.at(50))
    assert not pods.is_ready(marked)
    assert marked["status"]["conditions"][0]["lastTransitionTime"] == make.stamp(50)
    assert marked["status"]["conditions"][1] == running()["conditions"][1]
    assert pods.with_ready_false(marked, make.at(60)) is marked
    unheard = pod()
    assert pods.with_ready_false(unheard, make.NOW) is unheard


def test_same_disruption_condition_is_not_written_again() -> None:
    once = pods.with_disruption(pod(status=running()), pods.DISRUPTION_BY_TAINT, make.at(5))
    assert pods.with_disruption(once, pods.DISRUPTION_BY_TAINT, make.at(9)) is once


@pytest.mark.parametrize(
    ("tolerations", "seconds"),
    [
        ([], 10),
        ([toleration("other")], 10),
        ([toleration(NOT_READY, 300)], 310),
        ([toleration(NOT_READY, -1)], 10),
        ([toleration(NOT_READY)], None),
        ([toleration(NOT_READY), toleration(NOT_READY, 5)], None),
        ([{"operator": "Exists"}], None),
        ([{**toleration(NOT_READY, 7), "effect": "NoSchedule"}], 10),
    ],
)
def test_pod_is_evicted_when_its_toleration_of_taint_ends(tolerations: list[Any], seconds: float | None) -> None:
    result = pods.taint_eviction_time(pod(status=running(), tolerations=tolerations), [taint(NOT_READY, since=10)])
    assert result == (None if seconds is None else make.at(seconds))


def test_eviction_time_uses_shortest_toleration_and_earliest_taint() -> None:
    tolerations = [toleration("a", 100), toleration("b", 40)]
    taints = [taint("a", since=5), taint("b", since=30)]
    assert pods.taint_eviction_time(pod(status=running(), tolerations=tolerations), taints) == make.at(45)


def test_pod_started_after_taint_tolerates_it_from_its_own_start() -> None:
    late = pod(status=running(60), tolerations=[toleration("a", 10)])
    assert pods.taint_eviction_time(late, [taint("a", since=5)]) == make.at(70)
    assert pods.taint_eviction_time(late, [taint("a", since=None)]) == make.at(70)


def test_pods_are_indexed_by_node() -> None:
    index, here, there = PodsByNode(), pod("a"), pod("a", node="other")
    key = key_named("a")
    index.observe(key, pod("a", node=None), here)
    index.observe(key_named("b"), None, pod("b"))
    assert index.pod_keys_on("node") == (key, key_named("b"))
    index.observe(key, here, there)
    assert (index.pod_keys_on("node"), index.pod_keys_on("other")) == ((key_named("b"),), (key,))
    index.observe(key, there, None)
    index.observe(key, there, None)
    assert index.pod_keys_on("other") == ()
