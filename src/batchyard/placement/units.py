"""What is tried together: a waiting pod by itself, or all waiting pods of a gang as long as none of it has a node.

A unit is named by the uid of its pod, or by its gang.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api.conditions import Condition, with_condition
from batchyard.api.meta import Obj, with_status
from batchyard.api.times import format_time
from batchyard.api.views.pods import PodView
from batchyard.base.instant import Instant

Turn: TypeAlias = tuple[int, bool, int, str]
"""Priority, then gangs that have begun, then who waits longest, then the name."""


class Units:
    """The units of waiting pods."""

    def __init__(self) -> None:
        self._pods: dict[str, PodView] = {}
        self._by_gang: dict[str, dict[str, None]] = {}
        #: Pods of gangs that have a node and are not going, by gang and uid.
        self._begun: dict[str, dict[str, None]] = {}

    def pod(self, uid: str) -> PodView | None:
        """A pod that waits."""
        return self._pods.get(uid)

    def put(self, pod: PodView) -> None:
        """A pod waits; or it does already, and is another revision now."""
        self._pods[pod.uid] = pod
        if pod.gang:
            self._by_gang.setdefault(pod.gang, {})[pod.uid] = None

    def remove(self, uid: str) -> None:
        """A pod waits no more."""
        pod = self._pods.pop(uid)
        if pod.gang:
            del self._by_gang[pod.gang][uid]
            if not self._by_gang[pod.gang]:
                del self._by_gang[pod.gang]

    def of(self, pod: PodView) -> str:
        """The unit of a pod."""
        return pod.uid if not pod.gang or pod.gang in self._begun else pod.gang

    def pods(self, unit: str) -> Sequence[PodView]:
        """The pods of a unit; none if there is no such unit any more."""
        pod = self._pods.get(unit)
        if pod is not None:
            return (pod,) if self.of(pod) == unit else ()
        return () if unit in self._begun else [self._pods[uid] for uid in self._by_gang.get(unit, ())]

    def waiting_of(self, gang: str) -> list[PodView]:
        """The pods of a gang that wait."""
        return [self._pods[uid] for uid in self._by_gang.get(gang, ())]

    def set_begun(self, pod: PodView, has_begun: bool) -> bool:
        """A pod of a gang has a node, or has none any more; whether that changes what the gang's units are."""
        if not has_begun:
            begun = self._begun.get(pod.gang, {})
            if pod.uid in begun:
                del begun[pod.uid]
                if not begun:
                    del self._begun[pod.gang]
                    return True
            return False
        is_first = pod.gang not in self._begun
        self._begun.setdefault(pod.gang, {})[pod.uid] = None
        return is_first

    def turn(self, unit: Sequence[PodView]) -> Turn:
        """When the pods of a unit are tried."""
        first = min(unit, key=lambda pod: (pod.created, pod.key)) if len(unit) > 1 else unit[0]
        priority = max([pod.priority for pod in unit])
        return -priority, first.gang not in self._begun, first.created, first.key


# --- pod status ---
#
# What a scheduler writes into a Pod's status: each function returns the Pod itself where nothing changes.
#
# Sources: kube-scheduler's schedule_one.go (updatePod) and framework/preemption/executor.go; Kubernetes'
# pkg/registry/core/pod (conditions of gated and of bound pods).


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
