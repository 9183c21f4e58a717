"""Annotations of Workloads without owner plan their admission checks and when their pods are ready."""

import json
from typing import Any

import pytest

import make
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, find_condition, is_true, with_path
from batchyard.kubelet.simulated.durations import BareWorkloads
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.lifecycle import checks_of
from batchyard.sim.scenario import InvalidScenario, annotation_errors, make_scenario
from batchyard.sim.world import World
from stage import Stage

READY_AFTER_5 = {"name": "a", "state": "Ready", "after": "5s"}


def planned_workload(**plans: Any) -> Obj:
    """A Workload with the annotations `checks` and `pods_ready` as JSON; another text of an annotation as it is."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in plans.items()}
    return make.workload(annotations={f"batchyard.dev/{name.replace('_', '-')}": text for name, text in texts.items()})


def reserve(workload: Obj, seconds: float, *checks: str) -> Obj:
    return lifecycle.reserve_quota(workload, make.admission(), make.at(seconds), admitted=not checks, checks=checks)


def run_until(stage: Stage, seconds: float) -> Obj:
    """Run until that time, even if no work is due then."""
    stage.kernel.call_at(make.at(seconds), lambda: None)
    stage.run(seconds)
    return stage.workload()


def preempt(stage: Stage, seconds: float) -> None:
    workload = run_until(stage, seconds)
    stage.put(evictions.evict(workload, reason="Preempted", message="", now=make.at(seconds)))


def states(workload: Obj) -> dict[str, str]:
    return {check["name"]: check["state"] for check in checks_of(workload)}


def test_check_gets_planned_state_after_reservation() -> None:
    stage = Stage(BareWorkloads())
    stage.put(
        reserve(planned_workload(checks=[[READY_AFTER_5, {"name": "b", "state": "Retry", "after": "9s"}]]), 0, "a")
    )
    assert states(run_until(stage, 4)) == {"a": "Pending"}
    assert states(run_until(stage, 5)) == {"a": "Ready"}
    (check,) = checks_of(run_until(stage, 20))
    assert (check["lastTransitionTime"], check["message"]) == (
        make.stamp(5),
        "set as planned in the annotation batchyard.dev/checks",
    )


def test_latest_due_state_of_check_counts() -> None:
    stage = Stage(BareWorkloads())
    rejected = {"name": "a", "state": "Rejected", "after": "8s"}
    stage.put(reserve(planned_workload(checks=[[rejected, READY_AFTER_5]]), 0, "a"))
    assert states(run_until(stage, 7)) == {"a": "Ready"}
    assert states(run_until(stage, 8)) == {"a": "Rejected"}


def test_each_reservation_has_its_entry_and_last_entry_repeats() -> None:
    stage = Stage(BareWorkloads())
    retry = {"name": "a", "state": "Retry", "after": "1s", "requeueAfterSeconds": 7}
    stage.put(reserve(planned_workload(checks=[[READY_AFTER_5], [retry]]), 0, "a"))
    for seconds in (2, 10):
        preempt(stage, seconds)
        stage.put(reserve(stage.workload(), seconds, "a"))
        (check,) = checks_of(run_until(stage, seconds + 1))
        assert (check["state"], check["requeueAfterSeconds"]) == ("Retry", 7)


def test_states_of_ended_reservation_are_dropped() -> None:
    stage = Stage(BareWorkloads())
    stage.put(reserve(planned_workload(checks=[[READY_AFTER_5], []]), 0, "a"))
    preempt(stage, 2)
    stage.put(reserve(stage.workload(), 2, "a"))
    assert states(run_until(stage, 50)) == {"a": "Pending"}


def test_eviction_without_quota_does_not_count_as_reservation() -> None:
    stage = Stage(BareWorkloads())
    stage.put(planned_workload(checks=[[READY_AFTER_5], []]))
    deactivated = with_path(stage.workload(), ("spec", "active"), False)
    stage.put(evictions.deactivate(deactivated, make.NOW))
    stage.put(reserve(with_path(stage.workload(), ("spec", "active"), True), 0, "a"))
    assert states(run_until(stage, 5)) == {"a": "Ready"}


def test_restarted_controller_counts_evictions_as_reservations() -> None:
    stage = Stage(BareWorkloads())
    stage.put(reserve(planned_workload(checks=[[], [READY_AFTER_5]]), 0, "a"))
    preempt(stage, 2)
    stage.replace_controllers(BareWorkloads())
    stage.put(reserve(stage.workload(), 2, "a"))
    assert states(run_until(stage, 7)) == {"a": "Ready"}


def test_pods_are_ready_as_planned_for_each_admission() -> None:
    stage = Stage(BareWorkloads())
    stage.put(reserve(planned_workload(pods_ready=["never", "3s"]), 0))
    assert find_condition(run_until(stage, 50), "PodsReady") is None
    preempt(stage, 60)
    stage.put(reserve(stage.workload(), 60))
    assert not is_true(run_until(stage, 62), "PodsReady")
    assert is_true(run_until(stage, 63), "PodsReady")


def test_ready_pods_stay_ready_after_eviction() -> None:
    stage = Stage(BareWorkloads())
    stage.put(reserve(planned_workload(pods_ready=["0s", "never"]), 0))
    preempt(stage, 10)
    stage.put(reserve(stage.workload(), 10))
    condition = find_condition(run_until(stage, 50), "PodsReady")
    assert condition is not None
    assert (condition["status"], condition["lastTransitionTime"]) == ("True", make.stamp(0))


@pytest.mark.parametrize(
    ("plans", "reported"),
    [
        ({"checks": "["}, "not valid JSON"),
        ({"checks": []}, "must be a JSON list with at least one entry; use [["),
        ({"checks": [{"name": "a"}]}, "the list must contain one list per quota reservation; use [["),
        ({"checks": [["a"]]}, "each planned state must be an object with the name of a check; use [["),
        ({"checks": [[{"name": "a", "state": "Done"}]]}, "'Done' is not a state of an admission check; use one of"),
        ({"checks": [[{**READY_AFTER_5, "at": "1s"}]]}, "unknown field 'at'; use name, state, after"),
        ({"checks": [[{**READY_AFTER_5, "after": 5}]]}, "'5' is not a duration; write it as"),
        ({"checks": [[{**READY_AFTER_5, "requeueAfterSeconds": -1}]]}, "-1 is not a valid requeueAfterSeconds; use"),
        ({"pods_ready": "3s"}, "not valid JSON"),
        ({"pods_ready": [5]}, "the list must contain durations or 'never'; use ["),
        ({"pods_ready": ["soon"]}, "'soon' is not a duration; write it as"),
    ],
)
def test_invalid_plan_is_reported_with_remedy(plans: dict[str, Any], reported: str) -> None:
    (error,) = annotation_errors(planned_workload(**plans))
    assert str(error).partition("]: ")[2].startswith(reported)
    assert error.remedy


def test_plan_applies_only_to_workloads_without_owner() -> None:
    (error,) = annotation_errors(make.job(annotations={"batchyard.dev/pods-ready": '["1s"]'}))
    assert "applies only to Workloads without owner; move it to the metadata of a Workload" in str(error)


def test_invalid_plan_is_reported_with_file_and_line() -> None:
    text = json.dumps(planned_workload(pods_ready=[]))
    with pytest.raises(InvalidScenario, match=r"^wl\.yaml:1.*batchyard\.dev/pods-ready.*at least one entry"):
        make_scenario(read_manifests([("wl.yaml", text)]))


def check(controller: str) -> Obj:
    """An AdmissionCheck without conditions."""
    spec = {"controllerName": controller}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "a"}, "spec": spec}


@pytest.mark.parametrize(
    ("controller", "plans", "is_active"),
    [
        ("example.com/mine", {"checks": [[READY_AFTER_5]]}, True),
        ("example.com/mine", {}, False),
        ("kueue.x-k8s.io/provisioning-request", {"checks": [[READY_AFTER_5]]}, False),
    ],
)
def test_check_is_active_if_workload_plans_states(controller: str, plans: dict[str, Any], is_active: bool) -> None:
    texts = [json.dumps(obj) for obj in (check(controller), planned_workload(**plans))]
    scenario = make_scenario(read_manifests([("world.yaml", "\n---\n".join(texts))]))
    world = World(scenario)
    world.run_until(1)
    (stored,) = world.objects("AdmissionCheck.kueue.x-k8s.io")
    assert is_true(stored, "Active") == is_active
