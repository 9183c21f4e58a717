"""Stand-ins for controllers outside the simulation that act on Workloads without owner, as planned in annotations.

- `batchyard.dev/checks` plans the states of admission checks. It is a JSON list with one entry per quota reservation.
  An entry is a list of `{"name": ..., "state": ..., "after": ..., "requeueAfterSeconds": ...}`. The last entry also
  applies to all later reservations. `after` counts from the reservation and defaults to 0s.
- `batchyard.dev/pods-ready` plans when the pods become ready. It is a JSON list with one entry per admission: a
  duration from the admission, or "never". The last entry also applies to all later admissions. Without the annotation,
  the pods are ready at once, so no PodsReady timeout applies. PodsReady stays True after an eviction, because only the
  job framework resets it, and it does not cover Workloads without owner.

Sources: SetAdmissionCheckState in Kueue's pkg/workload/patching; generatePodsReadyCondition in its jobframework.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api import meta, scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.times import parse_time
from batchyard.base.instant import Duration, Instant, parse_duration
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.active_status import PROVISIONING_CONTROLLER_NAME
from batchyard.scheduling.workload import lifecycle, pods_ready
from batchyard.scheduling.workload.lifecycle import is_bare_workload

_NEVER: Final = "never"
_STATES: Final = (lifecycle.PENDING, lifecycle.READY, lifecycle.RETRY, lifecycle.REJECTED)
_STATE_FIELDS: Final = ("name", "state", "after", "requeueAfterSeconds")
_REQUEUE_SECONDS_MAX: Final = 2**31 - 1
_CHECKS_EXAMPLE: Final = """[[{"name": "CHECK", "state": "Ready", "after": "5s"}]]"""
_PODS_READY_EXAMPLE: Final = """["never", "10s"]"""
_CHECK_MESSAGE: Final = f"set as planned in the annotation {well_known.CHECKS}"
#: The transition time of the condition Active that AdmissionChecks without a controller get.
_ACTIVE_SINCE: Final = "1970-01-01T00:00:00Z"


class PlannedState(NamedTuple):
    """A state that an admission check gets some time after the quota reservation."""

    name: str
    state: str
    after: Duration
    requeue_after_seconds: int | None


#: For each quota reservation, the states that the admission checks get.
CheckPlan: TypeAlias = Sequence[Sequence[PlannedState]]
#: For each admission, the time until all pods are ready; None for never.
ReadyPlan: TypeAlias = Sequence[Duration | None]


@lru_cache(maxsize=4096)
def parse_check_plan(text: str) -> CheckPlan:
    """Parse the annotation `batchyard.dev/checks`; raise ValueError (`problem; remedy`) if it is invalid."""
    rows = _decode_list(text, _CHECKS_EXAMPLE)
    if not all(isinstance(row, list) for row in rows):
        raise ValueError(f"the list must contain one list per quota reservation; use {_CHECKS_EXAMPLE}")
    return [[_parse_state(entry) for entry in row] for row in rows]


@lru_cache(maxsize=4096)
def parse_ready_plan(text: str) -> ReadyPlan:
    """Parse the annotation `batchyard.dev/pods-ready`; raise ValueError (`problem; remedy`) if it is invalid."""
    entries = _decode_list(text, _PODS_READY_EXAMPLE)
    if not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"the list must contain durations or 'never'; use {_PODS_READY_EXAMPLE}")
    return [None if entry == _NEVER else parse_duration(entry) for entry in entries]


def _decode_list(text: str, example: str) -> list[Any]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"not valid JSON: {error}; use {example}") from error
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a JSON list with at least one entry; use {example}")
    return value


def _parse_state(entry: object) -> PlannedState:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise ValueError(f"each planned state must be an object with the name of a check; use {_CHECKS_EXAMPLE}")
    unknown_fields = [field for field in entry if field not in _STATE_FIELDS]
    if unknown_fields:
        raise ValueError(f"unknown field {unknown_fields[0]!r}; use {', '.join(_STATE_FIELDS)}")
    state, after, requeue_seconds = entry.get("state"), entry.get("after", "0s"), entry.get("requeueAfterSeconds")
    if state not in _STATES:
        raise ValueError(f"{state!r} is not a state of an admission check; use one of {', '.join(_STATES)}")
    is_count = isinstance(requeue_seconds, int) and not isinstance(requeue_seconds, bool)
    if requeue_seconds is not None and not (is_count and 0 <= requeue_seconds <= _REQUEUE_SECONDS_MAX):
        problem = f"{requeue_seconds!r} is not a valid requeueAfterSeconds"
        raise ValueError(f"{problem}; use a whole number from 0 to {_REQUEUE_SECONDS_MAX}")
    return PlannedState(entry["name"], state, parse_duration(str(after)), requeue_seconds)


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    well_known.CHECKS: parse_check_plan,
    well_known.PODS_READY: parse_ready_plan,
}


def plan_errors(obj: meta.Obj, field_path: str, name: str, text: str) -> Iterator[FieldError]:
    """Yield the error in one of the two annotations; `name` is the annotation, `field_path` its path in `obj`.

    Only Workloads without owner may have them, and no templates.
    """
    is_own_annotation = field_path.startswith("metadata.")
    if meta.group_kind(obj) != scheme.WORKLOAD or not is_bare_workload(obj) or not is_own_annotation:
        remedy = "move it to the metadata of a Workload without owner, or remove it"
        yield FieldError(field_path, "the annotation applies only to Workloads without owner", remedy)
        return
    try:
        _PARSERS[name](text)
    except ValueError as error:
        problem, _, remedy = str(error).partition("; ")
        yield FieldError(field_path, problem, remedy)


def with_active_checks(objects_by_time: Mapping[Duration, Sequence[meta.Obj]]) -> Mapping[Duration, Sequence[meta.Obj]]:
    """Return the objects of a scenario with the condition Active on AdmissionChecks without any conditions.

    The condition is added only if some Workload plans states of checks. AdmissionChecks of the provisioning controller
    are left to that controller. The keys are times, counted from the start of the run.
    """
    if not any(meta.annotation(obj, well_known.CHECKS) for obj in chain.from_iterable(objects_by_time.values())):
        return objects_by_time
    return {at: [_with_active_check(obj) for obj in objects] for at, objects in objects_by_time.items()}


def _with_active_check(obj: meta.Obj) -> meta.Obj:
    if meta.group_kind(obj) != scheme.ADMISSION_CHECK or (obj.get("status") or {}).get("conditions"):
        return obj
    if obj["spec"].get("controllerName") == PROVISIONING_CONTROLLER_NAME:
        return obj
    condition = {"type": "Active", "status": "True", "reason": "Active", "lastTransitionTime": _ACTIVE_SINCE}
    condition["message"] = "The simulation stands in for the controller of the admission check"
    return meta.with_path(obj, ("status", "conditions"), [condition])


class TransitionCounter:
    """The number of times that a condition of a Workload became True."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._latest: tuple[Instant, int] | None = None

    def count_to(self, transition_time: Instant, eviction_count: int) -> int:
        """Return the number of the current transition, starting with 1.

        Two transitions at one instant differ in the Workload's number of evictions.
        """
        if self._latest != (transition_time, eviction_count):
            self._latest = (transition_time, eviction_count)
            self._count += 1
        return self._count


class AdmissionCounters(NamedTuple):
    """The numbers of quota reservations and of admissions of one Workload."""

    reservations: TransitionCounter
    admissions: TransitionCounter


class PlannedStatus(NamedTuple):
    """A Workload with the status that is planned for the present, and the time of the next change (None: no change)."""

    workload: meta.Obj
    next_change: Instant | None


class ExternalControllers:
    """Sets admission checks and PodsReady of Workloads without owner, as planned in their annotations.

    It counts the reservations and admissions of each Workload. After a restart of the platform, the number of evictions
    replaces the earlier count.
    """

    def __init__(self) -> None:
        self._counters: dict[meta.Key, AdmissionCounters] = {}

    def observe(self, event: WatchEvent) -> None:
        """Start or end the counts of a Workload with a plan that was added or deleted."""
        if event.type is EventType.DELETED:
            self._counters.pop(event.key, None)
        else:
            self._counters[event.key] = _new_counters(event.obj)

    def planned_status(self, workload: meta.Obj, now: Instant) -> PlannedStatus:
        """Return a Workload that holds quota with the check states and the readiness planned for the present."""
        counters = self._counters.get(meta.key_of(workload))
        if counters is None:
            counters = self._counters[meta.key_of(workload)] = _new_counters(workload)
        after_checks = _with_planned_states(workload, counters.reservations, now)
        after_readiness = _with_planned_readiness(after_checks.workload, counters.admissions, now)
        times = [time for time in (after_checks.next_change, after_readiness.next_change) if time is not None]
        return PlannedStatus(after_readiness.workload, min(times, default=None))


def _new_counters(workload: meta.Obj) -> AdmissionCounters:
    count = _count_evictions(workload)
    return AdmissionCounters(TransitionCounter(count), TransitionCounter(count))


def _count_evictions(workload: meta.Obj) -> int:
    scheduling_stats = (workload.get("status") or {}).get("schedulingStats") or {}
    return sum(int(entry["count"]) for entry in scheduling_stats.get("evictions") or ())


def _parsed_plan(workload: meta.Obj, name: str, parse: Callable[[str], Sequence[Any]]) -> Sequence[Any]:
    """Return the plan in an annotation; empty if it is missing or invalid, as readers of manifests report errors."""
    text = meta.annotation(workload, name)
    try:
        return () if text is None else parse(text)
    except ValueError:
        return ()


def _entry(plan: Sequence[Any], number: int) -> Any:
    return plan[min(number, len(plan)) - 1]


def _with_planned_states(workload: meta.Obj, reservations: TransitionCounter, now: Instant) -> PlannedStatus:
    """Return the Workload with its checks in the latest planned states that are due."""
    plan = _parsed_plan(workload, well_known.CHECKS, parse_check_plan)
    reserved_at = _true_since(workload, lifecycle.QUOTA_RESERVED)
    if not plan or reserved_at is None:
        return PlannedStatus(workload, None)
    planned_states = _entry(plan, reservations.count_to(reserved_at, _count_evictions(workload)))
    due_states: dict[str, PlannedState] = {}
    next_change: Instant | None = None
    for planned in sorted(planned_states, key=lambda planned: planned.after):
        if reserved_at + planned.after > now:
            next_change = reserved_at + planned.after
            break
        due_states[planned.name] = planned
    for check in lifecycle.checks_of(workload):
        due_state = due_states.get(check["name"])
        if due_state is not None and check["state"] != due_state.state:
            workload = lifecycle.with_check(workload, _planned_check(check, due_state), now)
    return PlannedStatus(workload, next_change)


def _planned_check(check: lifecycle.AdmissionCheck, planned: PlannedState) -> lifecycle.AdmissionCheck:
    kept_fields = {field: value for field, value in check.items() if field != "requeueAfterSeconds"}
    new_check = {**kept_fields, "state": planned.state, "message": _CHECK_MESSAGE}
    if planned.requeue_after_seconds is not None:
        new_check["requeueAfterSeconds"] = planned.requeue_after_seconds
    return new_check


def _with_planned_readiness(workload: meta.Obj, admissions: TransitionCounter, now: Instant) -> PlannedStatus:
    """Return the Workload with PodsReady set to True if it is due in this admission."""
    plan = _parsed_plan(workload, well_known.PODS_READY, parse_ready_plan)
    admitted_at = _true_since(workload, lifecycle.ADMITTED)
    if not plan or admitted_at is None:
        return PlannedStatus(workload, None)
    delay = _entry(plan, admissions.count_to(admitted_at, _count_evictions(workload)))
    if delay is None:
        return PlannedStatus(workload, None)
    ready_at = admitted_at + delay
    if ready_at > now:
        return PlannedStatus(workload, ready_at)
    return PlannedStatus(pods_ready.set_pods_ready(workload, True, now), None)


def _true_since(workload: meta.Obj, condition_type: str) -> Instant | None:
    condition = meta.find_condition(workload, condition_type)
    if condition is None or condition["status"] != "True":
        return None
    return parse_time(condition["lastTransitionTime"])
