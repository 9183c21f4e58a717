"""Admission checks of a Workload: required checks, initial states, and messages of failed checks."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.api.views.workload import ClusterQueueView, cluster_queue_view
from batchyard.base.instant import exponential_backoff
from batchyard.scheduling.workload import lifecycle
from yard import SchedulerBench, group, head, queue


def with_rules(*rules: dict[str, Any]) -> ClusterQueueView:
    """A ClusterQueue with flavors one and two and these admission checks."""
    groups = [group(one={"cpu": 1}, two={"cpu": 1})]
    return cluster_queue_view(queue("cq", groups=groups, admissionChecksStrategy={"admissionChecks": list(rules)}))


def using(*flavors: str) -> Obj:
    """An admission with these flavors, one for each pod set."""
    return {"podSetAssignments": [{"name": name, "flavors": {"cpu": name}} for name in flavors]}


ALWAYS: dict[str, Any] = {"name": "z-always"}
ON_ONE: dict[str, Any] = {"name": "on-one", "onFlavors": ["one"]}
ON_BOTH: dict[str, Any] = {"name": "on-both", "onFlavors": ["two", "one"]}


@pytest.mark.parametrize(
    ("flavors", "required"),
    [
        (("one",), ["on-both", "on-one", "z-always"]),
        (("two",), ["on-both", "z-always"]),
        (("two", "one"), ["on-both", "on-one", "z-always"]),
        ((), []),
    ],
)
def test_workload_with_quota_requires_checks_of_its_flavors(flavors: tuple[str, ...], required: list[str]) -> None:
    assert lifecycle.required_checks(with_rules(ALWAYS, ON_ONE, ON_BOTH), using(*flavors)) == required


def test_pending_workload_requires_checks_of_all_flavors() -> None:
    assert lifecycle.required_checks(with_rules(ALWAYS, ON_ONE, ON_BOTH), None) == ["on-both", "z-always"]
    assert lifecycle.required_checks(cluster_queue_view(queue("cq", 1)), None) == []


def test_with_checks_adds_pending_keeps_known_and_drops_other_checks() -> None:
    known = {"name": "b", "state": "Ready", "message": "yes", "lastTransitionTime": make.stamp(0)}
    wl = make.workload(status={"admissionChecks": [known, {"name": "x", "state": "Ready"}], "kept": 1})
    synced = lifecycle.with_required_checks(wl, ["a", "b"], make.at(5))
    new = {"name": "a", "state": "Pending", "message": "", "lastTransitionTime": make.stamp(5)}
    assert synced["status"] == {"admissionChecks": [new, known], "kept": 1}
    assert lifecycle.with_required_checks(synced, ["a", "b"], make.at(9)) is synced
    assert lifecycle.with_required_checks(synced, [], make.at(9))["status"] == {"kept": 1}


def test_retried_checks_returns_checks_that_queue_still_requires() -> None:
    known = [{"name": "on-one", "retryCount": 2}, {"name": "gone", "retryCount": 1}, {"name": "z-always"}]
    wl = make.workload(status={"admissionChecks": known})
    assert lifecycle.retried_checks(wl, with_rules(ALWAYS, ON_ONE)) == ["on-one"]


def test_transition_time_of_check_changes_with_state() -> None:
    wl = lifecycle.with_required_checks(make.workload(), ["a", "b"], make.NOW)
    first, second = lifecycle.checks_of(wl)
    reported = lifecycle.with_check(wl, {**second, "message": "soon"}, make.at(3))
    assert lifecycle.checks_of(reported) == [first, {**second, "message": "soon"}]
    done = lifecycle.with_check(reported, {**second, "state": "Ready"}, make.at(4))
    assert lifecycle.checks_of(done)[1]["lastTransitionTime"] == make.stamp(4)
    assert lifecycle.with_check(done, lifecycle.checks_of(done)[1], make.at(5)) is done


def test_failed_checks_are_described_by_name_and_message() -> None:
    states = [("b", "Retry", "no room"), ("a", "Retry", ""), ("c", "Rejected", "never"), ("d", "Ready", "")]
    result = [{"name": name, "state": state, "message": message} for name, state, message in states]
    wl = make.workload(status={"admissionChecks": result})
    assert (
        lifecycle.describe_checks(lifecycle.checks_in_state(wl, "Retry"), "Retry")
        == 'AdmissionChecks in Retry state: "a"; "b" (no room)'
    )
    assert (
        lifecycle.describe_checks(lifecycle.checks_in_state(wl, "Rejected"), "Rejected")
        == 'AdmissionCheck in Rejected state: "c" (never)'
    )


def test_retry_at_returns_latest_retry() -> None:
    def check(state: str, since: float, after: int | None) -> Obj:
        seconds = {} if after is None else {"requeueAfterSeconds": after}
        return {"name": f"{state}{since}", "state": state, "lastTransitionTime": make.stamp(since), **seconds}

    states = [check("Retry", 0, 20), check("Retry", 10, 15), check("Retry", 90, None), check("Pending", 50, 60)]
    assert lifecycle.retry_at(make.workload(status={"admissionChecks": states})) == make.at(25)
    assert lifecycle.retry_at(make.workload(status={"admissionChecks": states[2:]})) is None
    assert lifecycle.retry_at(make.workload()) is None


@pytest.mark.parametrize("state", ["Retry", "Rejected"])
def test_workload_with_failed_check_is_not_admitted(state: str) -> None:
    bench = SchedulerBench(queue("a", 4))
    failed = [{"name": "c", "state": state}]
    message = "a1 waits (PendingEvaluation): The workload has failed admission checks"
    assert bench.decide(head("a1", status={"admissionChecks": failed})) == [message]
    assert bench.decide(head("a2", status={"admissionChecks": [{"name": "c", "state": "Pending"}]})) == [
        "a2: main 1 cpu=spot"
    ]


def test_backoff_doubles_up_to_maximum() -> None:
    assert [exponential_backoff(60, 1800, n) for n in (1, 2, 3, 5, 6, 1000)] == [60, 120, 240, 960, 1800, 1800]
    assert exponential_backoff(60, 30, 1) == 30
