"""ProvisioningRequests: their states, their pods, and their pools."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.autoscaler import provisioning_request_pods
from batchyard.autoscaler.auto_provisioning import NodeAutoProvisioner
from batchyard.autoscaler.expander import ScaleUpOption
from batchyard.autoscaler.provisioning_request_pods import (
    ConditionText,
    ProvisioningRequestState,
    choose_scale_up,
    pods_of,
    resize_request_name,
    state_of,
    with_condition_set,
    with_details,
    with_queued_request_nodes,
)
from batchyard.base.instant import HOUR
from unit.autoscaler.scaling_make import pod, pod_template, provisioning_request
from unit.autoscaler.scaling_make_core import A, B, cluster, groups, planner, pool, views

CONSUMES = {
    "autoscaling.x-k8s.io/consume-provisioning-request": "pr",
    "autoscaling.x-k8s.io/provisioning-class-name": "queued-provisioning.gke.io",
}
QUEUED_TAINT = [{"key": "cloud.google.com/gke-queued", "operator": "Exists"}]


def test_request_states_follow_gke_order() -> None:
    request: Obj = provisioning_request()
    result = [state_of(request)]
    for stated in (
        provisioning_request_pods.NOT_ACCEPTED,
        provisioning_request_pods.QUEUED,
        provisioning_request_pods.HAS_CAPACITY,
        provisioning_request_pods.BOOKING_EXPIRED_CONDITION,
        provisioning_request_pods.REVOKED_CONDITION,
    ):
        request = with_condition_set(request, stated, make.NOW)
        result.append(state_of(request))
    names = "UNINITIALIZED PENDING ACCEPTED PROVISIONED BOOKING_EXPIRED CAPACITY_REVOKED"
    assert [state.name for state in result] == names.split()


def test_failed_condition_yields_failed_state() -> None:
    request = with_condition_set(provisioning_request(), provisioning_request_pods.QUEUED, make.NOW)
    assert (
        state_of(with_condition_set(request, provisioning_request_pods.MISSING_RESIZE_REQUEST, make.NOW))
        is ProvisioningRequestState.FAILED
    )


def test_unchanged_condition_returns_same_request() -> None:
    request = with_condition_set(provisioning_request(), provisioning_request_pods.QUEUED, make.NOW)
    assert with_condition_set(request, provisioning_request_pods.QUEUED, make.at(5)) is request


def test_empty_provisioning_details_are_omitted() -> None:
    request = with_details(provisioning_request(), {"SelectedZone": A, "AcceleratorType": ""})
    assert request["status"]["provisioningClassDetails"] == {"SelectedZone": A}


@pytest.mark.parametrize(("text", "hours"), [("3600", 1), ("", 168), ("x", 168), ("0", 168)])
def test_max_run_duration_defaults_to_week(text: str, hours: int) -> None:
    request = provisioning_request(maxRunDurationSeconds=text)
    assert provisioning_request_pods.max_run_duration(request) == hours * HOUR


def test_valid_until_adds_seconds_to_creation_time() -> None:
    assert provisioning_request_pods.valid_until(provisioning_request(created=10, ValidUntilSeconds="60")) == make.at(
        70
    )
    assert provisioning_request_pods.valid_until(provisioning_request()) is None


def test_resize_request_name_is_truncated_and_hashed() -> None:
    name = resize_request_name("a-namespace-of-many-letters", "a-request-of-many-letters")
    assert name.startswith("gke-a-namespace-of-many--a-request-of-many-le-")
    assert len(name.rpartition("-")[2]) == 16


def test_pods_of_request_follow_pod_templates() -> None:
    result = pods_of(provisioning_request(count=2), [pod_template(gpu=1)])
    assert [view.name for view in result] == ["pr-0-0", "pr-0-1"]
    assert {"nvidia.com/gpu", "cloud.google.com/gke-queued"} <= {each.key for each in result[0].tolerations}


def test_consumer_pod_selects_nodes_of_its_request() -> None:
    admitted = with_queued_request_nodes(pod("p", annotations=CONSUMES))
    selector = {"autoscaling.gke.io/provisioning-request": resize_request_name("team", "pr")}
    assert admitted["spec"]["nodeSelector"] == selector
    assert admitted["spec"]["tolerations"][-1]["key"] == "cloud.google.com/gke-queued"


def test_pods_of_other_classes_are_unchanged() -> None:
    other = pod("p", annotations={**CONSUMES, "autoscaling.x-k8s.io/provisioning-class-name": "x"})
    assert with_queued_request_nodes(other) is other


def chosen_group(*pools: dict[str, Any], count: int = 2, cpu: str = "3", **spec: Any) -> Any:
    names = [f"p{number}" for number in range(count)]
    pods = views(*names, cpu=cpu, tolerations=QUEUED_TAINT)
    return choose_scale_up(pods, planner(groups(*pools), **spec), None)


def queued_pool(name: str = "q", **spec: Any) -> dict[str, Any]:
    return pool(name, provisioning="queued", **spec)


def test_choose_group_selects_single_zone_with_capacity() -> None:
    capacity = [{"machineType": "e2-standard-4", "zone": A, "count": 1}]
    option = chosen_group(queued_pool(), pool("other"), capacity=capacity)
    assert ([group.name for group in option.groups], len(option.nodes)) == ([("q", B)], 2)


@pytest.mark.parametrize(
    ("found", "reason", "message"),
    [
        (chosen_group(pool()), "NoQueuedNodepoolAvailable", "No nodepool with QueuedProvisioning enabled is available"),
        (chosen_group(queued_pool(most=1)), "NodepoolSizeReached", "Max nodepool size reached, affected nodepools: q"),
        (
            chosen_group(queued_pool(), cpu="9"),
            "ProvisioningRequestNotSchedulableInNodepool",
            "Provisioning Request's pods cannot be scheduled in the nodepool. Predicate checking errors: q (Insuff",
        ),
        (
            chosen_group(queued_pool(), autoscaling={"autoProvisioning": {"limits": [{"resource": "cpu", "max": 4}]}}),
            "OutOfResources",
            "Max cluster limit reached, nodepools out of resources: q (cpu)",
        ),
    ],
)
def test_choose_group_reports_failure_reason(found: ConditionText, reason: str, message: str) -> None:
    assert (found.type, found.reason) == ("Failed", reason)
    assert found.message.startswith(message)


def scale_up_with_new_pool(count: int, **limits: int) -> ScaleUpOption | ConditionText:
    """The scale-up for pods that need a node of 1 cpu each."""
    autoscaling = {"autoProvisioning": {"limits": [{"resource": name, "max": most} for name, most in limits.items()]}}
    select = {"node.kubernetes.io/instance-type": "n1-standard-1"}
    pods = views(*[f"p{number}" for number in range(count)], cpu="600m", tolerations=QUEUED_TAINT, nodeSelector=select)
    provisioner = NodeAutoProvisioner(cluster(), (), (), "queued")
    return choose_scale_up(pods, planner([], autoscaling=autoscaling), provisioner)


def test_new_queued_pool_grows_to_its_size_limit_in_one_zone() -> None:
    option = scale_up_with_new_pool(1000)
    assert isinstance(option, ScaleUpOption)
    assert ([group.name.zone for group in option.groups], len(option.nodes)) == ([A], 1000)
    failure = scale_up_with_new_pool(1001)
    assert isinstance(failure, ConditionText)
    assert failure.reason == "NodepoolSizeReached"
    assert failure.message.startswith("Max nodepool size reached, affected nodepools: nap-n1-standard-1-")


def test_new_queued_pool_reports_exceeded_cluster_limit() -> None:
    failure = scale_up_with_new_pool(3, cpu=2)
    assert isinstance(failure, ConditionText)
    assert failure.reason == "OutOfResources"
