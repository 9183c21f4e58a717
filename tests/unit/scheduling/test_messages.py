"""Reasons and messages of pending Workloads, as in Kueue."""

import pytest

from batchyard.scheduling.messages import (
    EXCEEDS_MAX_QUOTA,
    NO_MATCHING_FLAVOR,
    WAITING_FOR_QUOTA,
    ExceedsMaxCapacity,
    InsufficientQuota,
    PodSetReasons,
    PreemptionReason,
    format_pod_set_reasons,
    less_severe_reason,
    more_severe_reason,
    preemption_message,
)

ORDER = ["", WAITING_FOR_QUOTA, EXCEEDS_MAX_QUOTA, NO_MATCHING_FLAVOR]


@pytest.mark.parametrize("severer", range(4))
@pytest.mark.parametrize("milder", range(4))
def test_reasons_are_ordered_by_severity(milder: int, severer: int) -> None:
    a, b = ORDER[milder], ORDER[severer]
    assert more_severe_reason(a, b) == ORDER[max(milder, severer)]
    assert less_severe_reason(a, b) == ORDER[min(milder, severer)]


@pytest.mark.parametrize(
    ("resource", "missing", "text"),
    [("cpu", 1500, "1500m"), ("cpu", 2000, "2"), ("memory", 3 << 30, "3Gi"), ("nvidia.com/gpu", 8, "8")],
)
def test_insufficient_quota_message_formats_quantity(resource: str, missing: int, text: str) -> None:
    expected = f"insufficient unused quota for {resource} in flavor spot, {text} more needed"
    assert str(InsufficientQuota(resource, "spot", missing)) == expected


def test_max_capacity_message_reports_all_amounts() -> None:
    assert str(ExceedsMaxCapacity("cpu", "spot", 1000, 2500, 3000)) == (
        "insufficient quota for cpu in flavor spot, previously considered podsets requests (1) + current podset"
        " request (2500m) > maximum capacity (3)"
    )


def test_reasons_of_pod_set_are_sorted_by_text() -> None:
    facts = PodSetReasons(
        "main", (InsufficientQuota("memory", "a", 1), "flavor b not found", InsufficientQuota("cpu", "a", 1))
    )
    assert str(facts) == (
        "couldn't assign flavors to pod set main: flavor b not found, insufficient unused quota for cpu in flavor a,"
        " 1m more needed, insufficient unused quota for memory in flavor a, 1 more needed"
    )


def test_pod_sets_without_reasons_are_omitted() -> None:
    facts = (PodSetReasons("a", ("one",)), PodSetReasons("b", ()), PodSetReasons("c", ("two",)))
    message = "couldn't assign flavors to pod set a: one; couldn't assign flavors to pod set c: two"
    assert (format_pod_set_reasons(facts), format_pod_set_reasons(())) == (message, "")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (PreemptionReason.IN_CLUSTER_QUEUE, "prioritization in the ClusterQueue"),
        (PreemptionReason.IN_COHORT_RECLAMATION, "reclamation within the cohort"),
        (PreemptionReason.IN_COHORT_FAIR_SHARING, "Fair Sharing within the cohort"),
        (PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING, "reclamation within the cohort while borrowing"),
    ],
)
def test_preemption_message_names_preemptor_and_reason(reason: str, words: str) -> None:
    assert preemption_message("uid-1", "uid-2", reason, "/all/cq", "/all/other") == (
        f"Preempted to accommodate a workload (UID: uid-1, JobUID: uid-2) due to {words};"
        " preemptor path: /all/cq; preemptee path: /all/other"
    )


def test_preemption_message_reports_unknown_uids() -> None:
    message = preemption_message("", "", PreemptionReason.IN_CLUSTER_QUEUE, "/cq", "/cq")
    assert "(UID: UNKNOWN, JobUID: UNKNOWN)" in message
