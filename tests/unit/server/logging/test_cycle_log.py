"""Scheduling cycles in the log and as traces."""

import logging

import pytest

import make
from batchyard.interfaces.controller import TraceSpan
from batchyard.scheduling.controller import NoCycleObserver, Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.server.logging.logs import CycleLog
from stage import Stage
from yard import queue


def run_two_workloads(spans: list[TraceSpan] | None) -> None:
    """Schedule one Workload that fits, and one that does not."""
    watch = CycleLog(NoCycleObserver(), None if spans is None else spans.append)
    stage = Stage(Scheduler(SchedulerCache(), SchedulingPolicy(), watch=watch), WorkloadLifecycle())
    stage.put(make.namespace(), make.flavor("spot"), queue("cq", 2), make.local_queue())
    stage.put(make.workload("fits", pod_sets=[make.pod_set(count=2)]))
    stage.put(make.workload("waits", pod_sets=[make.pod_set(count=2)]))


def test_scheduling_cycle_is_trace_with_two_child_spans() -> None:
    spans: list[TraceSpan] = []
    run_two_workloads(spans)
    roots = [span for span in spans if not span.parent]
    assert len(spans) == 3 * len(roots)
    assert sum(int(root.attributes["admitted"]) for root in roots) == 1
    for root in roots:
        decide, apply = (span for span in spans if span.parent == root.id and span.trace_id == root.trace_id)
        assert (decide.start, decide.end, apply.end) == (root.start, apply.start, root.end)
        assert (len(root.trace_id), len(root.id)) == (32, 16)


def test_debug_log_reports_result_of_cycle(caplog: pytest.LogCaptureFixture) -> None:
    run_two_workloads(None)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, "batchyard.cycles"):
        run_two_workloads(None)
    assert "cycle 1: 1 heads, 1 admitted, 0 preempting, 0 waiting" in caplog.messages
