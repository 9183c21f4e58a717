"""Regression tests of the scheduler core and its controllers."""

import make
from batchyard.api import scheme
from batchyard.api.views.workload import workload_view
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import PreemptionLoop, SchedulingPolicy
from batchyard.scheduling.decisions import Admit
from batchyard.scheduling.flavor_assigner import LastAssignment
from batchyard.scheduling.queue_status import QueueStatusController
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from stage import Stage, condition_state
from yard import SchedulerBench, group, head_of, preemption, queue, quota, workload


def test_reservation_for_queue_above_borrowing_limit_frees_no_quota() -> None:
    bench = SchedulerBench(
        queue("a", quota(4, borrowing=1), cohort="all"), queue("b", 3, cohort="all"), queue("c", 0, cohort="all")
    )
    bench.hold("x", 6, "a")
    heads = [workload("wa", 1, queue="a", priority=5), workload("wb", 1, queue="b"), workload("wc", 1, queue="c")]
    admitted = [d for d in bench.cycle(*heads) if isinstance(d, Admit)]
    assert len(admitted) == 1  # 7 in all, 6 used


def test_every_pod_set_is_assigned_in_admission() -> None:
    bench = SchedulerBench(queue("cq", 4))
    sets = [make.pod_set("x", requests={"gpu": 0}), make.pod_set("y", requests={"cpu": "3"})]
    (decision,) = bench.cycle(workload("a", pod_sets=sets))
    assert not isinstance(decision, Admit) or len(decision.assignment.pod_sets) == 2


def test_last_assignment_beyond_last_flavor_is_ignored() -> None:
    bench = SchedulerBench(queue("cq", groups=[group(one={"cpu": 4})]))
    obj = workload(cpu=3)
    last = LastAssignment(({"cpu": 0},), 99, 0, workload_view(obj).shape)  # the queue had two flavors then
    (decision,) = bench.cycle(head_of(obj, last))
    assert not isinstance(decision, Admit) or decision.assignment.pod_sets[0].choices


def test_local_queue_reports_deleted_cluster_queue() -> None:
    index = SchedulerCache()
    stage = Stage(Scheduler(index, SchedulingPolicy()), QueueStatusController(index, fair_sharing=False))
    stage.put(make.namespace(), make.flavor("spot"), queue("cq", 4), make.local_queue("cq", cluster_queue="cq"))
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    assert condition_state(stage.get(scheme.LOCAL_QUEUE, "cq"), "Active")[1] == "ClusterQueueDoesNotExist"


def test_slow_victim_is_not_reported_as_preemption_loop() -> None:
    loops: list[PreemptionLoop] = []
    stage = Stage(Scheduler(SchedulerCache(), SchedulingPolicy(), loops.append), WorkloadLifecycle())
    stage.put(make.namespace(), make.flavor("spot"), make.local_queue("cq", cluster_queue="cq"))
    stage.put(queue("cq", 4, preemption=preemption("LowerPriority")))
    stage.put(workload("low", 3, priority=-1))
    stage.put(workload("high", 3, created=1))
    assert loops == []
