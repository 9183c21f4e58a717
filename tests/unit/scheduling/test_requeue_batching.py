"""Delayed reactivation: a preemptor that waits for its victims is admitted before inadmissible Workloads."""

import pytest

import make
from admission_watch import open_queue, workload_with_quota
from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.base.instant import SECOND, Duration
from batchyard.interfaces.client import Delete
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.lifecycle import has_quota_reservation
from stage import Stage
from yard import workload


def preempting(requeue_batch_period: Duration) -> Stage:
    """Two victims leave at 5.0 and 5.5 s; the preemptor needs the quota of both."""
    index = SchedulerCache()
    index.queue_manager.requeue_batch_period = requeue_batch_period
    stage = Stage(Scheduler(index, SchedulingPolicy(fair_sharing=True)))
    preemption = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "LowerPriority"}
    home = open_queue("home", 2, cohort="team", preemption=preemption)
    victims = [workload_with_quota(name, 2, queue="home") for name in ("one", "two")]
    stage.put(make.namespace(), make.flavor("spot"), *home, *open_queue("away", 2, cohort="team"), *victims)
    stage.run(2)
    for obj in (workload("waits", 2, queue="away"), workload("large", 4, queue="home", priority=9)):
        stage.put(obj)
    for seconds, name in ((5, "one"), (5.5, "two")):
        delete_at(stage, seconds, name)
    stage.run(7)
    return stage


def delete_at(stage: Stage, seconds: float, name: str) -> None:
    writes = [Delete(Key(scheme.WORKLOAD, "team", name))]
    stage.kernel.call_at(make.at(seconds), lambda: stage.client.submit(writes, lambda _: None))


def holds(stage: Stage) -> list[str]:
    return [name for name in ("large", "waits") if has_quota_reservation(stage.workload(name))]


@pytest.mark.parametrize(("requeue_batch_period", "first"), [(SECOND, "large"), (0, "waits")])
def test_requeue_batch_admits_preemptor_before_inadmissible_workloads(
    requeue_batch_period: Duration, first: str
) -> None:
    assert holds(preempting(requeue_batch_period)) == [first]


def test_inadmissible_workload_is_retried_after_gathering_period() -> None:
    stage = preempting(SECOND)
    delete_at(stage, 8, "large")
    stage.run(8.9)
    assert not has_quota_reservation(stage.workload("waits"))
    stage.run(9.1)
    assert has_quota_reservation(stage.workload("waits"))
