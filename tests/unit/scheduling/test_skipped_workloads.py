"""A requeued Workload that is skipped, since an equivalent Workload did not fit, reports this."""

import make
from admission_watch import workload_with_quota
from batchyard.api import scheme
from batchyard.api.meta import key_of, with_path
from batchyard.interfaces.client import EventType, UpdateStatus, WatchEvent
from batchyard.scheduling.controller import CYCLE_KEY, Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.messages import BYPASSED, PENDING_EVALUATION
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle
from stage import Stage, condition_state
from unit.scheduling.test_scheduler import added, events, open_stage, pass_time, settings
from yard import queue, workload


def test_bypassed_workload_reports_reason_after_stop_and_reactivation() -> None:
    stage = open_stage(queue("cq", 1))
    stage.put(workload("holder"), workload("w"))
    pass_time(stage, 3)
    assert condition_state(stage.workload("w"), "QuotaReserved")[1] == "WaitingForQuota"
    reported = events(stage, "WaitingForQuota")
    stage.put(with_path(stage.get(scheme.LOCAL_QUEUE, "cq"), ("spec", "stopPolicy"), "Hold"))
    pass_time(stage, 6)
    assert condition_state(stage.workload("w"), "QuotaReserved")[1] == "Suspended"
    stage.put(with_path(stage.workload("w"), ("spec", "active"), False))
    stage.put(make.local_queue("cq", cluster_queue="cq"))
    pass_time(stage, 9)
    assert condition_state(stage.workload("w"), "QuotaReserved")[1] == "Deactivated"
    stage.put(with_path(stage.workload("w"), ("spec", "active"), True))
    pass_time(stage, 12)
    why = "Bypassed scheduling evaluation because an equivalent workload recently failed"
    assert condition_state(stage.workload("w"), "QuotaReserved") == ("False", "WaitingForQuota", why)
    assert events(stage, "WaitingForQuota") == reported


def test_bypassed_workload_that_is_gone_gets_no_report() -> None:
    scheduler, stage, waiting = Scheduler(SchedulerCache(), SchedulingPolicy()), Stage(), workload("w")
    added(scheduler, *settings(), queue("cq", 1), workload_with_quota("holder", 1), waiting)
    stage.put(waiting)
    scheduler.reconcile(CYCLE_KEY, stage.client, make.NOW)
    message = "Workload is pending evaluation in the scheduling queue"
    awaiting = lifecycle.set_pending(waiting, PENDING_EVALUATION, message, make.NOW)
    event = WatchEvent(EventType.MODIFIED, key_of(awaiting), awaiting, waiting, 2)
    assert list(scheduler.keys_for(event, make.NOW)) == [CYCLE_KEY]
    assert scheduler.reconcile(CYCLE_KEY, Stage().client, make.NOW).writes == []
    stage.put(awaiting)
    assert list(scheduler.keys_for(event, make.NOW)) == [CYCLE_KEY]
    (write,) = scheduler.reconcile(CYCLE_KEY, stage.client, make.NOW).writes
    assert isinstance(write, UpdateStatus)
    assert condition_state(write.obj, "QuotaReserved") == ("False", "WaitingForQuota", BYPASSED)
