"""The pending reason of a Workload without quota, before and after scheduling."""

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.scheduling.workload.pending_reason import (
    PendingReason,
    WorkloadQueues,
    reason_for_pending,
    reservation_blocker,
)

OPEN = WorkloadQueues(make.local_queue(), make.cluster_queue(), make.namespace())


def pending(reason: str, message: str = "") -> Obj:
    return make.workload(conditions=[make.condition("QuotaReserved", False, reason=reason, message=message)])


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        pytest.param(
            WorkloadQueues(None, None),
            PendingReason("Misconfigured", "LocalQueue lq doesn't exist"),
            id="no LocalQueue",
        ),
        pytest.param(
            OPEN._replace(local_queue=make.local_queue(stopPolicy="Hold")),
            PendingReason("Suspended", "LocalQueue lq is inactive"),
            id="LocalQueue on hold",
        ),
        pytest.param(
            OPEN._replace(cluster_queue=None),
            PendingReason("Misconfigured", "ClusterQueue cq doesn't exist"),
            id="no ClusterQueue",
        ),
        pytest.param(
            OPEN._replace(cluster_queue=make.cluster_queue(active=False)),
            PendingReason("Suspended", "ClusterQueue cq is inactive"),
            id="ClusterQueue inactive",
        ),
        pytest.param(
            OPEN._replace(cluster_queue=make.cluster_queue(namespaceSelector={"matchLabels": {"a": "b"}})),
            PendingReason("Misconfigured", "workload namespace doesn't match ClusterQueue selector"),
            id="namespace not selected",
        ),
        pytest.param(
            OPEN._replace(cluster_queue=make.cluster_queue(namespaceSelector=None)),
            PendingReason("Misconfigured", "workload namespace doesn't match ClusterQueue selector"),
            id="no namespace selected",
        ),
        pytest.param(
            OPEN._replace(
                cluster_queue=make.cluster_queue(
                    namespaceSelector={
                        "matchLabels": {"kubernetes.io/metadata.name": make.namespace()["metadata"]["name"]}
                    }
                )
            ),
            None,
            id="namespace selected by its name",
        ),
        pytest.param(OPEN, None, id="no obstacle"),
        pytest.param(OPEN._replace(cluster_queue=make.cluster_queue(active=None)), None, id="status not known yet"),
    ],
)
def test_new_workload_reports_missing_or_inactive_queue(queues: WorkloadQueues, expected: PendingReason | None) -> None:
    assert reason_for_pending(make.workload(), queues) == expected


def test_deactivated_workload_reports_deactivation_first() -> None:
    assert reason_for_pending(make.workload(active=False), WorkloadQueues(None, None)) == PendingReason(
        "Deactivated", "The workload is deactivated"
    )


def test_missing_namespace_is_left_to_scheduler() -> None:
    picky = make.cluster_queue(namespaceSelector=None)
    assert reason_for_pending(make.workload(), OPEN._replace(cluster_queue=picky, namespace=None)) is None


def test_reason_of_workload_on_hold_is_kept() -> None:
    assert reason_for_pending(pending("OnHold"), WorkloadQueues(None, None)) is None


def test_admission_gate_is_reported() -> None:
    gated = make.workload(annotations={"kueue.x-k8s.io/admission-gated-by": "someone"})
    assert reason_for_pending(gated, OPEN) == PendingReason("AdmissionGated", "Admission is gated by: someone")


@pytest.mark.parametrize("reason", ["WaitingForQuota", "NoMatchingFlavor", "PendingEvaluation"])
def test_reason_of_scheduler_is_kept(reason: str) -> None:
    assert reason_for_pending(pending(reason, "details"), OPEN) is None


def test_validation_error_of_scheduler_is_kept() -> None:
    assert reason_for_pending(pending("Misconfigured", "resources validation failed: limits"), OPEN) is None


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Deactivated", "The workload is deactivated"),
        ("Suspended", "ClusterQueue cq is inactive"),
        ("Misconfigured", "LocalQueue lq doesn't exist"),
        ("Misconfigured", "workload namespace doesn't match ClusterQueue selector"),
        ("Suspended", "LocalQueue lq is stopped"),
        ("Misconfigured", "ClusterQueue  is terminating or missing"),
    ],
)
def test_resolved_reason_is_replaced_by_pending_evaluation(reason: str, message: str) -> None:
    assert reason_for_pending(pending(reason, message), OPEN) == PendingReason(
        "PendingEvaluation", "Workload is pending evaluation in the scheduling queue"
    )


def test_stopped_or_missing_queue_blocks_reservation() -> None:
    wl = make.workload()
    assert reservation_blocker(wl, OPEN) is None
    stopped = OPEN._replace(cluster_queue=make.cluster_queue(stopPolicy="Hold"))
    assert reservation_blocker(wl, stopped) == PendingReason("Suspended", "ClusterQueue cq is stopped")
    gone = PendingReason("Misconfigured", "LocalQueue lq is terminating or missing")
    assert reservation_blocker(wl, WorkloadQueues(None, None)) == gone
    assert (WorkloadQueues(None, None).cluster_queue_name, OPEN.cluster_queue_name) == ("", "cq")
