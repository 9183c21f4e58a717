"""Admission checks of a Workload: which ones it requires, their initial state, and messages of failed ones.

A check is Pending until its controller sets it to Ready, Retry or Rejected. Sources: Kueue's
pkg/workload/admissionchecks.go, and its workload_controller in pkg/controller/core.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api.meta import Obj, with_path
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.queues import ClusterQueueView
from batchyard.base.instant import SECOND, Instant

Check: TypeAlias = Mapping[str, Any]

PENDING: Final = "Pending"
READY: Final = "Ready"
RETRY: Final = "Retry"
REJECTED: Final = "Rejected"

_NOTHING: Final[Mapping[str, Any]] = {}


def checks_of(workload: Obj) -> Sequence[Check]:
    """Return the checks in its status."""
    return (workload.get("status") or _NOTHING).get("admissionChecks") or ()


def are_ready(checks: Sequence[Check]) -> bool:
    """Report whether all checks are Ready."""
    return all(check["state"] == READY for check in checks)


# --- required checks ---


def required_checks(queue: ClusterQueueView, admission: Mapping[str, Any] | None) -> list[str]:
    """Return the names of the checks that a Workload of a ClusterQueue requires, sorted.

    With quota, it requires those of its flavors. While it is pending, only checks that all flavors require are known.
    """
    if not queue.check_rules:
        return []
    if admission is None:
        every = frozenset(queue.flavors)
        return sorted(rule.name for rule in queue.check_rules if every.issubset(rule.flavors))
    assignments = admission.get("podSetAssignments") or ()
    used = {flavor: None for assignment in assignments for flavor in (assignment.get("flavors") or _NOTHING).values()}
    return sorted(rule.name for rule in queue.check_rules if any(flavor in used for flavor in rule.flavors))


def retried_checks(workload: Obj, queue: ClusterQueueView) -> list[str]:
    """Return the names of its retried checks that may still be required.

    They stay while it is pending, whatever its next flavors are. Otherwise the retry count would never reach its limit.
    """
    rules = [rule.name for rule in queue.check_rules]
    return [check["name"] for check in checks_of(workload) if check.get("retryCount") and check["name"] in rules]


def with_checks(workload: Obj, required: Sequence[str], now: Instant) -> Obj:
    """Return the Workload with exactly these checks, new ones Pending; the same object if it has them."""
    known = {check["name"]: check for check in checks_of(workload)}
    if known.keys() == frozenset(required):
        return workload
    checks = [known.get(name) or new_check(name, format_time(now)) for name in required]
    return with_path(workload, ("status", "admissionChecks"), checks or None)


# --- one check ---


def new_check(name: str, time: str) -> Check:
    """Return a new Pending check."""
    return {"name": name, "state": PENDING, "message": "", "lastTransitionTime": time}


def reset_check(check: Check, time: str) -> Check:
    """Return a check after an eviction: Pending again, with its retry count."""
    if check["state"] == PENDING:
        return check
    message = f"Reset to Pending after eviction. Previously: {check['state']}"
    fresh = {"name": check["name"], "state": PENDING, "message": message, "lastTransitionTime": time}
    if "requeueAfterSeconds" in check:
        fresh["requeueAfterSeconds"] = check["requeueAfterSeconds"]
    if check["state"] == RETRY:
        fresh["retryCount"] = check.get("retryCount", 0) + 1
    return fresh


def with_check(workload: Obj, check: Check, now: Instant) -> Obj:
    """Return the Workload with a check replaced by name; a changed state gets the current time."""
    checks = checks_of(workload)
    old = next(each for each in checks if each["name"] == check["name"])
    if check == old:
        return workload
    if check["state"] != old["state"]:
        check = {**check, "lastTransitionTime": format_time(now)}
    return with_path(workload, ("status", "admissionChecks"), [check if each is old else each for each in checks])


# --- failed checks ---


def in_state(workload: Obj, state: str) -> list[Check]:
    """Return its checks in a state, by name."""
    found = [check for check in checks_of(workload) if check["state"] == state]
    return sorted(found, key=lambda check: check["name"])


def describe_checks(checks: Sequence[Check], state: str) -> str:
    """Describe these checks, which are all in one state, in Kueue's words."""
    parts = [f'"{c["name"]}" ({c["message"]})' if c.get("message") else f'"{c["name"]}"' for c in checks]
    noun = "AdmissionChecks" if len(checks) > 1 else "AdmissionCheck"
    return f"{noun} in {state} state: {'; '.join(parts)}"


def retry_at(workload: Obj) -> Instant | None:
    """Return the latest retry time of its checks in state Retry; None if they have none."""
    times = [
        parse_time(check["lastTransitionTime"]) + check["requeueAfterSeconds"] * SECOND
        for check in in_state(workload, RETRY)
        if "requeueAfterSeconds" in check
    ]
    return max(times, default=None)
