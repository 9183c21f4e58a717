"""The admission checks of a Workload: which it needs, how they begin, and what those that failed say.

A check is Pending until the controller it names makes it Ready, Retry or Rejected. Sources: Kueue's
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
    """The checks in its status."""
    return (workload.get("status") or _NOTHING).get("admissionChecks") or ()


def are_ready(checks: Sequence[Check]) -> bool:
    """Whether nothing is left to be checked."""
    return all(check["state"] == READY for check in checks)


# --- which ---


def required_checks(queue: ClusterQueueView, admission: Mapping[str, Any] | None) -> list[str]:
    """The names of the checks a Workload of a ClusterQueue needs, sorted.

    One that holds quota needs those of its flavors. Of one that waits only those are known that all flavors need.
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
    """The names of those of its checks that were tried again and may be needed still.

    They stay while it waits, whatever its next flavors: else each try would be the first, and none ever the last.
    """
    rules = [rule.name for rule in queue.check_rules]
    return [check["name"] for check in checks_of(workload) if check.get("retryCount") and check["name"] in rules]


def with_checks(workload: Obj, required: Sequence[str], now: Instant) -> Obj:
    """The Workload with exactly these checks: new ones are pending; the same object if it has them."""
    known = {check["name"]: check for check in checks_of(workload)}
    if known.keys() == frozenset(required):
        return workload
    checks = [known.get(name) or new_check(name, format_time(now)) for name in required]
    return with_path(workload, ("status", "admissionChecks"), checks or None)


# --- one check ---


def new_check(name: str, time: str) -> Check:
    """A check nobody has looked at."""
    return {"name": name, "state": PENDING, "message": "", "lastTransitionTime": time}


def reset_check(check: Check, time: str) -> Check:
    """A check as an eviction leaves it: it starts anew, and knows how often it was to be tried again."""
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
    """The Workload with a check in place of that of its name, as of now if its state is another."""
    checks = checks_of(workload)
    old = next(each for each in checks if each["name"] == check["name"])
    if check == old:
        return workload
    if check["state"] != old["state"]:
        check = {**check, "lastTransitionTime": format_time(now)}
    return with_path(workload, ("status", "admissionChecks"), [check if each is old else each for each in checks])


# --- those that failed ---


def in_state(workload: Obj, state: str) -> list[Check]:
    """Its checks in a state, by name."""
    found = [check for check in checks_of(workload) if check["state"] == state]
    return sorted(found, key=lambda check: check["name"])


def told(checks: Sequence[Check], state: str) -> str:
    """What these checks say of a state they are all in, in Kueue's words."""
    parts = [f'"{c["name"]}" ({c["message"]})' if c.get("message") else f'"{c["name"]}"' for c in checks]
    noun = "AdmissionChecks" if len(checks) > 1 else "AdmissionCheck"
    return f"{noun} in {state} state: {'; '.join(parts)}"


def retry_at(workload: Obj) -> Instant | None:
    """When the last of the checks that are to be tried again lets it queue; None if they do not care."""
    times = [
        parse_time(check["lastTransitionTime"]) + check["requeueAfterSeconds"] * SECOND
        for check in in_state(workload, RETRY)
        if "requeueAfterSeconds" in check
    ]
    return max(times, default=None)
