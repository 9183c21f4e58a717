"""What a scheduler writes into a Pod's status: each function returns the Pod itself where nothing changes.

Sources: kube-scheduler's schedule_one.go (updatePod) and framework/preemption/executor.go; Kubernetes'
pkg/registry/core/pod (conditions of gated and of bound pods).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.conditions import Condition, with_condition
from batchyard.api.meta import Obj, with_status
from batchyard.api.times import format_time
from batchyard.base.instant import Instant

GATED: Final = "SchedulingGated"
_GATED_MESSAGE: Final = "Scheduling is blocked due to non-empty scheduling gates"
_SCHEDULED: Final = "PodScheduled"


def set_unplaced(obj: Obj, message: str, nominated: str, now: Instant) -> Obj:
    """It fits no node, and why; room is held for it on the nominated one."""
    conditions = with_condition(
        _conditions(obj), type=_SCHEDULED, status=False, reason="Unschedulable", message=message, now=now
    )
    return _with(obj, conditions, nominated)


def set_gated(obj: Obj, now: Instant) -> Obj:
    """Its scheduling gates keep it from being tried."""
    conditions = with_condition(
        _conditions(obj), type=_SCHEDULED, status=False, reason=GATED, message=_GATED_MESSAGE, now=now
    )
    return _with(obj, conditions, (obj.get("status") or {}).get("nominatedNodeName") or "")


def set_placed(obj: Obj, now: Instant) -> Obj:
    """It has a node."""
    placed = {"type": _SCHEDULED, "status": "True", "lastTransitionTime": format_time(now)}
    conditions = [
        placed if condition["type"] == _SCHEDULED and condition["status"] != "True" else condition
        for condition in _conditions(obj)
    ]
    return _with(obj, conditions, "")


def set_preempted(obj: Obj, scheduler: str, now: Instant) -> Obj:
    """It must leave for a pod of that scheduler."""
    conditions = with_condition(
        _conditions(obj),
        type="DisruptionTarget",
        status=True,
        reason="PreemptionByScheduler",
        message=f"{scheduler}: preempting to accommodate a higher priority pod",
        now=now,
    )
    return _with(obj, conditions, (obj.get("status") or {}).get("nominatedNodeName") or "")


def _conditions(obj: Obj) -> list[Condition]:
    conditions: Sequence[Condition] = (obj.get("status") or {}).get("conditions") or ()
    return conditions if isinstance(conditions, list) else list(conditions)


def _with(obj: Obj, conditions: Sequence[Mapping[str, Any]], nominated: str) -> Obj:
    status = obj.get("status") or {}
    new = {**status, "conditions": conditions, "nominatedNodeName": nominated or None}
    new = {field: value for field, value in new.items() if value is not None}
    return obj if new == status else with_status(obj, new)
