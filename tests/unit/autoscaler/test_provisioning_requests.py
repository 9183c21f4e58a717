"""ProvisioningRequests get machines, wait for capacity, or fail with a reason; their capacity is booked."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_path
from batchyard.autoscaler.provisioning_request_pods import resize_request_name, with_queued_request_nodes
from batchyard.interfaces.client import Create, Delete, WriteResult
from unit.autoscaler.scaling_make import (
    ZONES,
    AutoscalerStage,
    cluster,
    pod,
    pod_template,
    pool,
    provisioning_request,
    says,
)

ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
CHECK = "check-capacity.autoscaling.x-k8s.io"
HOUR, DAY = 3600, 24 * 3600
NONE_LEFT = [{"machineType": "n1-standard-2", "zone": ZONES[0], "count": 0}]
OWN: Any = {"cpu": "100m", "memory": "100Mi", "gpu": 1}


def queued_pool(most: int = 1, **spec: Any) -> Any:
    """A pool whose machines are created only by ResizeRequests."""
    accelerator = {"type": "nvidia-tesla-t4", "count": 1}
    return pool("dws", "n1-standard-2", most, provisioning="queued", accelerator=accelerator, policy="ANY", **spec)


def with_request(request: Obj, *pools: Any, template: Any = None, **spec: Any) -> AutoscalerStage:
    """A cluster with a request for pods of the template."""
    world = AutoscalerStage(cluster(pools or [queued_pool()], **spec))
    world.put(pod_template(**(OWN if template is None else template)), request)
    world.run(0)
    return world


def state(world: AutoscalerStage, kind: str, name: str = "pr") -> str:
    """Status and reason of a condition of a request."""
    return says(world.get(scheme.PROVISIONING_REQUEST, name), kind)


def request_exists(world: AutoscalerStage, name: str = "pr") -> bool:
    """Whether the request still exists."""
    return world.client.get(Key(scheme.PROVISIONING_REQUEST, "team", name)) is not None


def consumer(name: str, request: str = "pr", kind: str = "queued-provisioning.gke.io", **fields: Any) -> Any:
    """A pod that consumes a request."""
    consumes = {
        "autoscaling.x-k8s.io/consume-provisioning-request": request,
        "autoscaling.x-k8s.io/provisioning-class-name": kind,
    }
    return with_queued_request_nodes(pod(name, annotations=consumes, **(fields or OWN)))


def test_queued_request_is_accepted_at_next_scan_and_provisioned() -> None:
    world = with_request(provisioning_request())
    assert (state(world, "Accepted"), world.machines()) == ("False/NotAccepted", [])
    world.run(10)
    assert state(world, "Accepted") == "True/SuccessfullyQueued"
    world.run(20)
    assert state(world, "Provisioned") == "True/Provisioned"
    (name,) = world.nodes("dws")
    labels = world.get(scheme.NODE, name, "")["metadata"]["labels"]
    assert (
        labels["autoscaling.gke.io/provisioning-request"]
        == world.client.list(scheme.RESIZE_REQUEST)[0]["metadata"]["name"]
    )


def test_queued_request_reports_provisioning_details() -> None:
    world = with_request(provisioning_request())
    world.run(30)
    details = world.get(scheme.PROVISIONING_REQUEST, "pr")["status"]["provisioningClassDetails"]
    assert details["NodePoolName"] == "dws"
    assert details["NodeGroupName"].endswith("-grp")
    assert details["SelectedZone"] == ZONES[0]
    assert details["ResizeRequestName"].startswith("gke-team-pr-")


def test_consumer_pods_run_only_on_nodes_of_their_request() -> None:
    world = with_request(provisioning_request(), queued_pool(most=5))
    world.put(consumer("early"))
    world.run(60)
    assert world.place("early") in world.nodes("dws")
    world.put(consumer("more"))
    world.run(2 * HOUR)
    assert (world.place("more"), len(world.machines())) == ("", 1)


def test_queued_request_waits_for_capacity() -> None:
    world = with_request(provisioning_request(), capacity=NONE_LEFT)
    world.run(30 * DAY)
    assert state(world, "Accepted") == "True/SuccessfullyQueued"
    assert state(world, "Provisioned") == "False/ResourcePoolExhausted"
    world.put(with_path(world.get(scheme.CLUSTER, "batch", ""), ("spec", "capacity"), []))
    world.run(30 * DAY + 60)
    assert state(world, "Provisioned") == "True/Provisioned"


def test_queued_request_fails_after_valid_until_seconds() -> None:
    world = with_request(provisioning_request(ValidUntilSeconds="3600"), capacity=NONE_LEFT)
    world.run(2 * HOUR)
    assert state(world, "Failed") == "True/WaitTimeExceeded"
    assert world.client.list(scheme.RESIZE_REQUEST) == []


@pytest.mark.parametrize(
    ("request_", "pools", "template", "reason"),
    [
        (provisioning_request(count=2), [queued_pool()], OWN, "NodepoolSizeReached"),
        (provisioning_request(), [queued_pool()], {**OWN, "gpu": 2}, "ProvisioningRequestNotSchedulableInNodepool"),
        (provisioning_request(), [pool()], OWN, "NoQueuedNodepoolAvailable"),
    ],
)
def test_unschedulable_request_fails_after_two_minutes(request_: Obj, pools: Any, template: Any, reason: str) -> None:
    world = with_request(request_, *pools, template=template)
    world.run(119)
    assert (state(world, "Accepted"), state(world, "Failed")) == (f"False/{reason}", "")
    world.run(130)
    assert state(world, "Failed") == f"True/{reason}"
    world.finish()
    assert not request_exists(world)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"maxRunDurationSeconds": "1h"}, "InvalidArgumentMaxRunDurationParseError"),
        ({"maxRunDurationSeconds": ""}, "InvalidArgumentMaxRunDurationParseError"),
        ({"maxRunDurationSeconds": "604801"}, "InvalidArgument"),
        ({"maxRunDurationSeconds": "-60"}, "InvalidArgument"),
        ({"capacitySearchStrategy": "OBTAINABILITY"}, "ObtainabilityStrategyUnsupported"),
    ],
)
def test_request_with_unsupported_parameters_fails(parameters: Any, reason: str) -> None:
    world = with_request(provisioning_request(**parameters))
    world.run(30)
    assert (state(world, "Failed"), state(world, "Provisioned")) == (f"True/{reason}", "")
    assert [*world.client.list(scheme.RESIZE_REQUEST), *world.machines()] == []


def test_request_accepts_late_pod_template() -> None:
    world = AutoscalerStage(cluster([queued_pool()]))
    world.put(provisioning_request())
    world.run(30)
    assert state(world, "Accepted") == "False/MissingPodTemplates"
    world.put(pod_template(**OWN))
    world.run(60)
    assert state(world, "Provisioned") == "True/Provisioned"


def test_request_without_pod_template_fails_after_two_minutes() -> None:
    world = AutoscalerStage(cluster([queued_pool()]))
    world.put(provisioning_request())
    world.run(130)
    assert state(world, "Failed") == "True/MissingPodTemplates"
    message = world.get(scheme.PROVISIONING_REQUEST, "pr")["status"]["conditions"][-1]["message"]
    assert message.startswith("Provisioning Request failed because there were missing pod templates, 1 pod templates")


def accepted_request() -> tuple[AutoscalerStage, Obj]:
    """A request that waits for capacity, with its ResizeRequest."""
    world = with_request(provisioning_request(), capacity=NONE_LEFT)
    world.run(60)
    (resize_request,) = world.client.list(scheme.RESIZE_REQUEST)
    return world, resize_request


def test_request_fails_if_its_resize_request_is_deleted() -> None:
    world, resize_request = accepted_request()
    world.delete(scheme.RESIZE_REQUEST, resize_request["metadata"]["name"], "")
    world.run(80)
    assert state(world, "Failed") == "True/MissingResizeRequest"


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (
            {"state": "CANCELLED"},
            "InternalErrorResizeRequestGotCancelled",
            "Provisioning Request failed because Resize Request got cancelled.",
        ),
        (
            {"state": "FAILED"},
            "InternalErrorResizeRequestFailed",
            "Provisioning Request failed, but no errors with details can be provided.",
        ),
        ({"state": "FAILED", "error": {"code": "QUOTA_EXCEEDED", "message": "no"}}, "QuotaExceeded", "no"),
        ({"state": "FAILED", "error": {"code": "NEW"}}, "InternalError", ""),
    ],
)
def test_request_fails_with_error_of_its_resize_request(status: Obj, reason: str, message: str) -> None:
    world, resize_request = accepted_request()
    world.put({**resize_request, "status": status})
    world.run(80)
    assert state(world, "Failed") == f"True/{reason}"
    assert world.get(scheme.PROVISIONING_REQUEST, "pr")["status"]["conditions"][-1]["message"] == message
    assert world.client.list(scheme.RESIZE_REQUEST) == []


def test_request_replaces_resize_request_for_missing_pool() -> None:
    world = with_request(provisioning_request())
    request = {
        "apiVersion": "cloud.batchyard.dev/v1alpha1",
        "kind": "ResizeRequest",
        "metadata": {"name": resize_request_name("team", "pr")},
        "spec": {"pool": "gone", "zone": ZONES[0], "count": 1, "maxRunDuration": "600s"},
    }
    world.put(request)
    world.run(60)
    assert [each["spec"]["pool"] for each in world.client.list(scheme.RESIZE_REQUEST)] == ["dws"]
    assert state(world, "Provisioned") == "True/Provisioned"


def test_booking_expires_after_ten_minutes_and_nodes_are_deleted() -> None:
    world = with_request(provisioning_request())
    world.run(615)
    assert state(world, "BookingExpired") == ""
    world.run(625)
    assert (state(world, "BookingExpired"), len(world.nodes())) == ("True/BookingExpired", 1)
    world.run(1300)
    assert world.nodes() == []


def test_request_is_revoked_after_max_run_duration() -> None:
    world = with_request(provisioning_request(maxRunDurationSeconds="3600"))
    world.put(consumer("p"))
    world.run(30 * 60)
    assert world.place("p")
    world.run(HOUR + 60)
    assert (state(world, "CapacityRevoked"), world.machines()) == ("True/CapacityRevoked", [])


def test_deleted_request_removes_its_resize_request() -> None:
    world = with_request(provisioning_request(), capacity=NONE_LEFT)
    world.run(60)
    world.delete(scheme.PROVISIONING_REQUEST, "pr")
    world.run(120)
    assert (world.client.list(scheme.RESIZE_REQUEST), world.machines()) == ([], [])


def test_recreated_request_does_not_reuse_previous_resize_request() -> None:
    world = with_request(provisioning_request(maxRunDurationSeconds="600"), capacity=NONE_LEFT)
    results: list[WriteResult] = []
    world.run(60)
    gone, recreated = Delete(Key(scheme.PROVISIONING_REQUEST, "team", "pr")), Create(provisioning_request(created=60))
    world.client.submit([gone, recreated], results.append)
    world.run(80)
    (request,) = world.client.list(scheme.RESIZE_REQUEST)
    assert (request["spec"]["maxRunDuration"], state(world, "Accepted")) == ("604800s", "True/SuccessfullyQueued")


def test_requests_do_not_share_nodes() -> None:
    world = with_request(provisioning_request("a"), queued_pool(most=2))
    world.put(provisioning_request("b"))
    world.run(60)
    assert [state(world, "Provisioned", name) for name in "ab"] == ["True/Provisioned"] * 2
    assert len(world.machines()) == 2


def with_request_for_new_pool(request: Obj, **spec: Any) -> AutoscalerStage:
    """A cluster with auto-provisioning, without a queued pool, and with a request for pods with a T4."""
    limits = [{"resource": name, "max": 100} for name in ("cpu", "memory", "nvidia-tesla-t4")]
    select = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    autoscaling = {"autoProvisioning": {"limits": limits}}
    return with_request(request, pool(), template={**OWN, "nodeSelector": select}, autoscaling=autoscaling, **spec)


def test_auto_provisioning_creates_queued_pool_for_request() -> None:
    world = with_request_for_new_pool(provisioning_request())
    world.run(60)
    (created,) = [name for name in world.pools() if name != "pool"]
    assert world.get(scheme.NODE_POOL, created, "")["spec"]["provisioning"] == "queued"
    assert (state(world, "Provisioned"), len(world.nodes(created))) == ("True/Provisioned", 1)
    world.run(2 * HOUR)
    assert (world.pools(), world.machines()) == (["pool"], [])


@pytest.mark.parametrize(
    ("counts", "selected"), [((0, None, None), 1), ((1, 1, 3), 2), ((0, 2, 2), 1), ((None, 0, None), 0)]
)
def test_request_for_new_pool_selects_zone_with_capacity(counts: tuple[int | None, ...], selected: int) -> None:
    capacity = [
        {"machineType": "n1-standard-1", "zone": zone, "count": count}
        for zone, count in zip(ZONES, counts, strict=True)
        if count is not None
    ]
    world = with_request_for_new_pool(provisioning_request(count=2), capacity=capacity)
    world.run(60)
    (resize_request,) = world.client.list(scheme.RESIZE_REQUEST)
    assert (resize_request["spec"]["zone"], resize_request["spec"]["count"]) == (ZONES[selected], 2)
    assert (state(world, "Provisioned"), world.zones()) == ("True/Provisioned", {ZONES[selected]: 2})


def test_atomic_request_creates_all_nodes_at_once() -> None:
    world = with_request(provisioning_request(kind=ATOMIC, count=2), pool(), template={"cpu": "3"})
    assert len(world.machines()) == 2
    assert state(world, "Provisioned") == "True/CapacityIsProvisioned"


def test_atomic_request_without_capacity_is_retried_with_backoff() -> None:
    world = with_request(provisioning_request(kind=ATOMIC, count=3), pool(most=2), template={"cpu": "3"})
    world.run(60)
    assert (state(world, "Provisioned"), world.machines()) == ("False/CapacityIsNotFound", [])
    world.put(with_path(world.get(scheme.NODE_POOL, "pool", ""), ("spec", "autoscaling", "max"), 3))
    world.run(179)
    assert world.machines() == []
    world.run(181)
    assert (state(world, "Provisioned"), len(world.machines())) == ("True/CapacityIsProvisioned", 3)


def test_request_is_provisioned_on_existing_capacity() -> None:
    world = with_request(provisioning_request(kind=ATOMIC), pool(nodeCount=1), template={"cpu": "1"})
    world.run(30)
    assert len(world.machines()) == 1
    world.put(provisioning_request("more", CHECK, created=30))
    world.run(60)
    assert state(world, "Provisioned", "more") == "True/CapacityIsFound"


def test_check_capacity_request_excludes_booked_capacity() -> None:
    world = with_request(provisioning_request(kind=CHECK), pool(nodeCount=1), template={"cpu": "2"})
    world.run(300)
    assert state(world, "Provisioned") == "True/CapacityIsFound"
    world.put(provisioning_request("late", CHECK, created=300))
    world.put(provisioning_request("once", CHECK, created=300, noRetry="true"))
    world.run(320)
    assert state(world, "Provisioned", "late") == "False/CapacityIsNotFound"
    assert state(world, "Failed", "once") == "True/CapacityIsNotFound"


def test_request_without_its_pod_template_books_no_capacity() -> None:
    world = with_request(provisioning_request(kind=CHECK), pool(nodeCount=1), template={"cpu": "2"})
    world.run(30)
    assert state(world, "Provisioned") == "True/CapacityIsFound"
    world.delete(scheme.POD_TEMPLATE, "t")
    late = provisioning_request("late", CHECK, created=30)
    world.put(pod_template("u", cpu="3"), with_path(late, ("spec", "podSets"), [_pod_set("u")]))
    world.run(60)
    assert state(world, "Provisioned", "late") == "True/CapacityIsFound"


def _pod_set(template: str) -> Obj:
    return {"count": 1, "podTemplateRef": {"name": template}}


def test_booking_ends_at_timeout_or_after_consumption() -> None:
    world = with_request(provisioning_request(kind=ATOMIC), pool(most=2), template={"cpu": "3"})
    world.put(provisioning_request("used", ATOMIC))
    world.run(60)
    world.put(consumer("p", "used", ATOMIC, cpu="3"))
    world.run(599)
    assert state(world, "BookingExpired", "used") == "True/CapacityBookingConsumed"
    assert state(world, "BookingExpired") == ""
    world.run(620)
    assert state(world, "BookingExpired") == "True/CapacityReservationTimeExpired"


def test_unprovisioned_request_expires_after_week() -> None:
    world = with_request(provisioning_request(kind=ATOMIC, count=3), pool(most=2), template={"cpu": "3"})
    world.run(7 * DAY + 60)
    assert state(world, "Failed") == "True/Expired"
    world.finish()
    assert not request_exists(world)


def test_check_capacity_request_without_pod_templates_fails() -> None:
    world = AutoscalerStage(cluster([pool()]))
    world.put(provisioning_request(kind=CHECK))
    world.run(0)
    assert state(world, "Failed") == "True/FailedToCreatePods"
    (failed,) = world.get(scheme.PROVISIONING_REQUEST, "pr")["status"]["conditions"]
    reported = "missing pod templates, 1 pod templates were referenced, 1 templates were missing: t"
    assert failed["message"] == reported


@pytest.mark.parametrize(
    "other",
    [provisioning_request(kind="someone.else/own"), provisioning_request(kind=CHECK, processorInstance="theirs")],
)
def test_requests_of_other_classes_or_instances_are_ignored(other: Obj) -> None:
    world = with_request(other)
    world.run(60)
    assert world.get(scheme.PROVISIONING_REQUEST, "pr").get("status") is None
