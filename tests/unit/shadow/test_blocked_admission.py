"""A shadow of a Kueue that blocks admission until the Pods of all admitted Workloads are ready."""

import make
from admission_watch import open_queue, workload_with_quota
from batchyard.api.meta import Obj
from batchyard.base.instant import SECOND
from batchyard.scheduling.workload.pods_ready import set_pods_ready
from batchyard.shadow.state import BlockedPeriods, ShadowSettings
from unit.shadow.test_requeue_batching import ShadowHarness, admitted_workload
from yard import workload


def blocked_queue() -> ShadowHarness:
    """Return a queue of 4 CPUs: the Pods of an admitted Workload are not ready, and another Workload is pending."""
    terms = ShadowSettings(blocked_periods=BlockedPeriods())
    harness = ShadowHarness(*open_queue(), workload_with_quota("starts", 1), terms=terms)
    harness.at(1, workload("waits", 1, created=1))
    return harness


def ready_workload() -> Obj:
    return set_pods_ready(workload_with_quota("starts", 1), True, make.NOW)


def test_blocked_workload_is_not_reported() -> None:
    assert blocked_queue().end() == []


def test_admission_after_all_pods_are_ready_agrees() -> None:
    harness = blocked_queue()
    harness.at(40, ready_workload())
    harness.at(41, admitted_workload("waits", 1, created=1))
    assert harness.end() == []
    assert harness.follower.counts.agreements == {"admission": 1}


def test_workload_not_admitted_after_all_pods_are_ready_is_reported() -> None:
    harness = blocked_queue()
    harness.at(30, ready_workload())
    assert harness.end() == ["team/waits"]
    assert harness.reported[0].at >= make.NOW + 30 * SECOND + ShadowSettings().patience


def test_blocked_head_is_admitted_before_later_higher_priority_workload() -> None:
    harness = blocked_queue()
    harness.at(20, workload("better", 4, created=20, priority=9))
    harness.at(40, ready_workload())
    harness.at(40.2, admitted_workload("waits", 1, created=1))
    assert harness.end() == []


def test_pending_workload_is_reported_without_blocked_periods() -> None:
    harness = ShadowHarness(*open_queue(), workload_with_quota("starts", 1))
    harness.at(1, workload("waits", 1, created=1))
    assert harness.end() == ["team/waits"]
