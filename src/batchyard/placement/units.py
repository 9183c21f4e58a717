"""Scheduling units of the placement controller (pods and gangs), and its changes to the status of pods.

A unit is a pending pod, or all pending pods of a gang of which no pod is bound. Its name is the pod's uid or the gang.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api.meta import Condition, Obj, with_condition, with_status
from batchyard.api.times import format_time
from batchyard.api.views.pods import PodView
from batchyard.base.instant import Instant

UnitSortKey: TypeAlias = tuple[int, bool, int, str]
"""Sort key of a unit: priority, partly bound gangs first, creation time, name."""


class SchedulingUnits:
    """The pending pods, grouped into scheduling units: single pods, and gangs that are placed as a whole."""

    def __init__(self) -> None:
        self._pods: dict[str, PodView] = {}
        self._uids_by_gang: dict[str, dict[str, None]] = {}
        #: Uids of the bound pods that are not terminating, by gang.
        self._bound_uids_by_gang: dict[str, dict[str, None]] = {}

    def pod(self, uid: str) -> PodView | None:
        """Return the pending pod with this uid; None if it is not pending."""
        return self._pods.get(uid)

    def put(self, pod: PodView) -> None:
        """Add a pending pod, or replace it by a newer revision."""
        self._pods[pod.uid] = pod
        if pod.gang:
            self._uids_by_gang.setdefault(pod.gang, {})[pod.uid] = None

    def remove(self, uid: str) -> None:
        """Remove a pod that is no longer pending."""
        pod = self._pods.pop(uid)
        if pod.gang:
            del self._uids_by_gang[pod.gang][uid]
            if not self._uids_by_gang[pod.gang]:
                del self._uids_by_gang[pod.gang]

    def unit_of(self, pod: PodView) -> str:
        """Return the name of the scheduling unit of a pod: its gang, or its uid if it is scheduled alone."""
        return pod.uid if not pod.gang or pod.gang in self._bound_uids_by_gang else pod.gang

    def pods(self, unit: str) -> Sequence[PodView]:
        """Return the pods of a scheduling unit, given by name; empty if the unit no longer exists."""
        pod = self._pods.get(unit)
        if pod is not None:
            return (pod,) if self.unit_of(pod) == unit else ()
        return () if unit in self._bound_uids_by_gang else [self._pods[uid] for uid in self._uids_by_gang.get(unit, ())]

    def pending_pods_of(self, gang: str) -> list[PodView]:
        """Return the pending pods of a gang."""
        return [self._pods[uid] for uid in self._uids_by_gang.get(gang, ())]

    def record_bound_state(self, pod: PodView, is_bound: bool) -> bool:
        """Record whether a pod of a gang is bound; return whether the gang got its first or lost its last bound pod.

        The other pods of a gang are scheduled one by one as long as one of its pods is bound.
        """
        if not is_bound:
            bound_uids = self._bound_uids_by_gang.get(pod.gang, {})
            if pod.uid in bound_uids:
                del bound_uids[pod.uid]
                if not bound_uids:
                    del self._bound_uids_by_gang[pod.gang]
                    return True
            return False
        is_first_bound = pod.gang not in self._bound_uids_by_gang
        self._bound_uids_by_gang.setdefault(pod.gang, {})[pod.uid] = None
        return is_first_bound

    def sort_key(self, unit_pods: Sequence[PodView]) -> UnitSortKey:
        """Return the key that sorts a pod or gang (given by its pods) into the order in which units are tried."""
        first_pod = min(unit_pods, key=lambda pod: (pod.created, pod.key)) if len(unit_pods) > 1 else unit_pods[0]
        priority = max([pod.priority for pod in unit_pods])
        return -priority, first_pod.gang not in self._bound_uids_by_gang, first_pod.created, first_pod.key


# The scheduler's changes to a Pod's status. Each function returns the same object if nothing changes.
#
# Sources: kube-scheduler's schedule_one.go (updatePod) and framework/preemption/executor.go; Kubernetes'
# pkg/registry/core/pod (conditions of gated and of bound pods).


GATED: Final = "SchedulingGated"
_GATED_MESSAGE: Final = "Scheduling is blocked due to non-empty scheduling gates"
_SCHEDULED: Final = "PodScheduled"


def set_unschedulable_condition(obj: Obj, message: str, nominated_node: str, now: Instant) -> Obj:
    """Return a pod with PodScheduled=False (Unschedulable), this message, and this nominated node ('' for none)."""
    old = _pod_conditions(obj)
    conditions = with_condition(old, type=_SCHEDULED, status=False, reason="Unschedulable", message=message, now=now)
    return _with_status(obj, conditions, nominated_node)


def set_gated_condition(obj: Obj, now: Instant) -> Obj:
    """Return a gated pod with PodScheduled=False (SchedulingGated)."""
    old = _pod_conditions(obj)
    conditions = with_condition(old, type=_SCHEDULED, status=False, reason=GATED, message=_GATED_MESSAGE, now=now)
    return _with_status(obj, conditions, (obj.get("status") or {}).get("nominatedNodeName") or "")


def set_scheduled_condition(obj: Obj, now: Instant) -> Obj:
    """Return a bound pod with its nominated node removed, and with its PodScheduled condition, if any, set to True."""
    scheduled_condition = {"type": _SCHEDULED, "status": "True", "lastTransitionTime": format_time(now)}
    conditions = [
        scheduled_condition if condition["type"] == _SCHEDULED and condition["status"] != "True" else condition
        for condition in _pod_conditions(obj)
    ]
    return _with_status(obj, conditions, "")


def set_preempted(obj: Obj, scheduler: str, now: Instant) -> Obj:
    """Return a pod with the DisruptionTarget condition, because `scheduler` preempts it."""
    conditions = with_condition(
        _pod_conditions(obj),
        type="DisruptionTarget",
        status=True,
        reason="PreemptionByScheduler",
        message=f"{scheduler}: preempting to accommodate a higher priority pod",
        now=now,
    )
    return _with_status(obj, conditions, (obj.get("status") or {}).get("nominatedNodeName") or "")


def _pod_conditions(obj: Obj) -> list[Condition]:
    conditions: Sequence[Condition] = (obj.get("status") or {}).get("conditions") or ()
    return conditions if isinstance(conditions, list) else list(conditions)


def _with_status(obj: Obj, conditions: Sequence[Mapping[str, Any]], node_name: str) -> Obj:
    status = obj.get("status") or {}
    new_status = {**status, "conditions": conditions, "nominatedNodeName": node_name or None}
    new_status = {field: value for field, value in new_status.items() if value is not None}
    return obj if new_status == status else with_status(obj, new_status)
