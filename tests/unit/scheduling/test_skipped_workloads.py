"""A requeued Workload that is skipped, since an equivalent Workload did not fit, reports this."""

import make
from batchyard.api import scheme
from batchyard.api.meta import with_path
from stage import stated
from unit.scheduling.test_scheduler import events, open_stage, pass_time
from yard import queue, workload


def test_bypassed_workload_reports_reason_after_stop_and_reactivation() -> None:
    stage = open_stage(queue("cq", 1))
    stage.put(workload("holder"), workload("w"))
    pass_time(stage, 3)
    assert stated(stage.workload("w"), "QuotaReserved")[1] == "WaitingForQuota"
    reported = events(stage, "WaitingForQuota")
    stage.put(with_path(stage.get(scheme.LOCAL_QUEUE, "cq"), ("spec", "stopPolicy"), "Hold"))
    pass_time(stage, 6)
    assert stated(stage.workload("w"), "QuotaReserved")[1] == "Suspended"
    stage.put(with_path(stage.workload("w"), ("spec", "active"), False))
    stage.put(make.local_queue("cq", cluster_queue="cq"))
    pass_time(stage, 9)
    assert stated(stage.workload("w"), "QuotaReserved")[1] == "Deactivated"
    stage.put(with_path(stage.workload("w"), ("spec", "active"), True))
    pass_time(stage, 12)
    why = "Bypassed scheduling evaluation because an equivalent workload recently failed"
    assert stated(stage.workload("w"), "QuotaReserved") == ("False", "WaitingForQuota", why)
    assert events(stage, "WaitingForQuota") == reported
