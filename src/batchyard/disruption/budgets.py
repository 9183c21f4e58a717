"""PodDisruptionBudgets: selected pods, status, and the decision on evictions.

Sources: Kubernetes's pkg/controller/disruption, pkg/registry/core/pod/storage/eviction.go.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj, with_status
from batchyard.api.selectors import selector
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pod_lifecycle import PENDING, is_ready, is_terminal, is_terminating, phase
from batchyard.base.instant import MINUTE, Instant

DISRUPTION_ALLOWED: Final = "DisruptionAllowed"
SUFFICIENT: Final = "SufficientPods"
INSUFFICIENT: Final = "InsufficientPods"
SYNC_FAILED: Final = "SyncFailed"
#: How long an evicted pod counts as disrupted if it is not deleted.
DELETION_TIMEOUT: Final = 2 * MINUTE
#: The maximum number of evicted pods that the controller has not confirmed.
_DISRUPTED_MAX: Final = 2000
_ALWAYS: Final = "AlwaysAllow"


class ExpectedPods(NamedTuple):
    """The expected number of pods, and the pods without a controller."""

    expected: int
    unmanaged: tuple[str, ...] = ()


class DisruptedPods(NamedTuple):
    """The evicted pods that still exist, with the time of eviction, and when the next one expires."""

    pods: Mapping[str, str]
    #: Pods that were not deleted in time.
    not_deleted: tuple[Obj, ...]
    look_at: Instant | None


class EvictionRefusal(NamedTuple):
    """Why an eviction is rejected, as an API error."""

    code: int
    reason: str
    message: str
    cause: str = ""
    retry_after: int = 0


class EvictionVerdict(NamedTuple):
    """The decision on an eviction, and the budget with one disruption less."""

    refusal: EvictionRefusal | None = None
    spent: Obj | None = None


# --- selection ---


def spec_of(budget: Obj) -> Mapping[str, Any]:
    """Return the spec of a budget; without one, which Kubernetes accepts, it selects no pods."""
    return budget.get("spec") or {}


def guards(budget: Obj, pod: Obj) -> bool:
    """Report whether a budget selects a pod of its Namespace."""
    chosen = selector(spec_of(budget).get("selector"))
    return chosen is not None and chosen.matches(pod["metadata"].get("labels") or {})


def is_guarded(pod: Obj) -> bool:
    """Report whether a budget applies to a pod: it was started, and is neither ended nor being deleted."""
    return phase(pod) != PENDING and not is_terminal(pod) and not is_terminating(pod)


# --- status ---


def counts_controllers(spec: Mapping[str, Any]) -> bool:
    """Report whether the expected number comes from the pods' controllers instead of the existing pods."""
    return spec.get("maxUnavailable") is not None or isinstance(spec.get("minAvailable"), str)


def desired_healthy(spec: Mapping[str, Any], expected: int) -> int:
    """Return the number of pods that must be healthy."""
    if spec.get("maxUnavailable") is not None:
        return max(0, expected - _share(spec["maxUnavailable"], expected))
    return 0 if spec.get("minAvailable") is None else _share(spec["minAvailable"], expected)


def _share(value: int | str, total: int) -> int:
    """Return an absolute number, or a percentage of the total, rounded up."""
    return value if isinstance(value, int) else -(-int(value.removesuffix("%")) * total // 100)


def disrupted(budget: Obj, pods: Iterable[Obj], now: Instant) -> DisruptedPods:
    """Return the evicted pods that still exist."""
    known = (budget.get("status") or {}).get("disruptedPods") or {}
    left: dict[str, str] = {}
    late: list[Obj] = []
    look_at: Instant | None = None
    for pod in pods:
        name = pod["metadata"]["name"]
        if is_terminating(pod) or name not in known:
            continue
        until = parse_time(known[name]) + DELETION_TIMEOUT
        if until < now:
            late.append(pod)
        else:
            left[name] = known[name]
            look_at = until if look_at is None else min(until, look_at)
    return DisruptedPods(left, tuple(late), look_at)


def status_of(
    budget: Obj, pods: Sequence[Obj], scale: ExpectedPods, gone: Mapping[str, str], now: Instant
) -> dict[str, Any]:
    """Return the status of a budget."""
    desired = desired_healthy(spec_of(budget), scale.expected)
    healthy = sum(is_ready(p) and not is_terminating(p) and p["metadata"]["name"] not in gone for p in pods)
    allowed = max(0, healthy - desired) if scale.expected > 0 else 0
    status = {
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptionsAllowed": allowed,
        "expectedPods": scale.expected,
        "observedGeneration": budget["metadata"].get("generation", 0),
        "conditions": (budget.get("status") or {}).get("conditions") or [],
    }
    return _judged({**status, "disruptedPods": dict(gone)} if gone else status, now)


def failed_status(budget: Obj, error: str, now: Instant) -> dict[str, Any]:
    """Return the status of a budget that cannot be computed: it allows no disruption."""
    status = {"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0, **(budget.get("status") or {})}
    return _with_condition({**status, "disruptionsAllowed": 0}, SYNC_FAILED, error, now)


def _judged(status: dict[str, Any], now: Instant) -> dict[str, Any]:
    return _with_condition(status, SUFFICIENT if status["disruptionsAllowed"] > 0 else INSUFFICIENT, "", now)


def _with_condition(status: Mapping[str, Any], reason: str, message: str, now: Instant) -> dict[str, Any]:
    """Return the status with the DisruptionAllowed condition."""
    known = find_condition({"status": status}, DISRUPTION_ALLOWED)
    word = "True" if reason == SUFFICIENT else "False"
    since = known["lastTransitionTime"] if known is not None and known["status"] == word else format_time(now)
    new = {
        "type": DISRUPTION_ALLOWED,
        "status": word,
        "observedGeneration": status.get("observedGeneration", 0),
        "lastTransitionTime": since,
        "reason": reason,
        "message": message,
    }
    others = [each for each in status.get("conditions") or () if each["type"] != DISRUPTION_ALLOWED]
    return {**status, "conditions": [*others, new]}


# --- evictions ---


def verdict(pod: Obj, budgets: Sequence[Obj], now: Instant) -> EvictionVerdict:
    """Decide on the eviction of a pod, given the budgets of its Namespace."""
    mine = [budget for budget in budgets if guards(budget, pod)] if is_guarded(pod) else []
    if not mine:
        return EvictionVerdict()
    if len(mine) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        return EvictionVerdict(EvictionRefusal(500, "", message))
    budget = mine[0]
    if not is_ready(pod) and _allows_unready(budget):
        return EvictionVerdict()
    refusal = _refusal(budget)
    return EvictionVerdict(refusal) if refusal is not None else EvictionVerdict(spent=_spent(budget, pod, now))


def _allows_unready(budget: Obj) -> bool:
    """Report whether unready pods may be evicted regardless of the remaining disruptions."""
    if spec_of(budget).get("unhealthyPodEvictionPolicy") == _ALWAYS:
        return True
    status = budget.get("status") or {}
    return bool(0 < status.get("desiredHealthy", 0) <= status.get("currentHealthy", 0))


_VIOLATION: Final = "Cannot evict pod as it would violate the pod's disruption budget."


def _refusal(budget: Obj) -> EvictionRefusal | None:
    """Return why a budget rejects an eviction; None if it allows it."""
    status, name = budget.get("status") or {}, budget["metadata"]["name"]
    subject = f"The disruption budget {name}"
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        return EvictionRefusal(
            429, "TooManyRequests", _VIOLATION, f"{subject} is still being processed by the server.", 10
        )
    allowed = status.get("disruptionsAllowed", 0)
    start = f'poddisruptionbudget.policy "{name}" is forbidden'
    if allowed < 0:
        why = "pdb disruptions allowed is negative"
        return EvictionRefusal(
            403, "Forbidden", f"{start}: {why}", f"{subject} does not allow evicting pods currently: {why}"
        )
    if len(status.get("disruptedPods") or ()) > _DISRUPTED_MAX:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        cause = "too many pending evictions not confirmed by PDB controller"
        detail = f"{subject} does not allow evicting pods currently: {cause}"
        return EvictionRefusal(403, "Forbidden", f"{start}: {why}", detail)
    return None if allowed else EvictionRefusal(429, "TooManyRequests", _VIOLATION, _why_none(budget, subject))


def _why_none(budget: Obj, subject: str) -> str:
    """Describe why no disruptions are allowed."""
    status = budget.get("status") or {}
    desired, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
    condition = find_condition(budget, DISRUPTION_ALLOWED) or {}
    message = condition.get("message") if condition.get("status") == "False" else ""
    blunt = f"{subject} does not allow evicting pods currently"
    if message and condition.get("reason") == SYNC_FAILED:
        return f"{blunt} because it failed sync: {message}"
    if healthy <= desired:
        return f"{subject} needs {desired} healthy pods and has {healthy} currently"
    return f"{blunt} ({condition['reason']}): {message}" if message else blunt


def _spent(budget: Obj, pod: Obj, now: Instant) -> Obj:
    """Return a budget after an eviction."""
    status = budget["status"]
    gone = {**(status.get("disruptedPods") or {}), pod["metadata"]["name"]: format_time(now)}
    spent = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1, "disruptedPods": gone}
    return with_status(budget, spent if spent["disruptionsAllowed"] else _judged(spent, now))
