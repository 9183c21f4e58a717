"""How fast a HorizontalPodAutoscaler may follow its metrics: limits, policies and stabilization windows.

Source: pkg/controller/podautoscaler of Kubernetes (horizontal.go).
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

from batchyard.base.instant import MINUTE, SECOND, Duration, Instant

#: The window in which the highest recommendation counts, unless the behavior has another one.
SCALE_DOWN_WINDOW: Final = 5 * MINUTE
_SCALE_UP_FACTOR: Final = 2
_SCALE_UP_MINIMUM: Final = 4
_REPLICAS_MAX: Final = 2**31 - 1
_WITHIN_RANGE: Final = ("DesiredWithinRange", "the desired count is within the acceptable range")
_TOO_MANY: Final = ("TooManyReplicas", "the desired replica count is more than the maximum replica count")
_TOO_FEW: Final = ("TooFewReplicas", "the desired replica count is less than the minimum replica count")
_SCALE_UP_LIMIT: Final = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate")
_SCALE_DOWN_LIMIT: Final = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
)
_SCALE_UP_STABILIZED: Final = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
)
_SCALE_DOWN_STABILIZED: Final = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
)
_READY: Final = ("ReadyForNewScale", "recommended size matches current size")
_RATE_LIMITS: Final = (_SCALE_UP_LIMIT, _SCALE_DOWN_LIMIT)

Reason = tuple[str, str]


class ReplicaBounds(NamedTuple):
    """The replicas now, and the least and the most replicas that an autoscaler allows."""

    current: int
    minimum: int
    maximum: int


class AllowedReplicas(NamedTuple):
    """The replicas that the bounds, windows and policies allow, with the reasons for two conditions."""

    replicas: int
    #: The reason and message of the condition AbleToScale.
    able: Reason
    #: The reason and message of the condition ScalingLimited, and its status.
    limit: Reason
    is_limited: bool

    @property
    def depends_on_time(self) -> bool:
        """Whether more or fewer replicas may be allowed later, although nothing else changes."""
        return self.able is not _READY or (self.is_limited and self.limit in _RATE_LIMITS)


class ScalingHistory:
    """The recent recommendations and rescales of one autoscaler; old entries are replaced, so that few are kept."""

    def __init__(self, current_replicas: int, now: Instant) -> None:
        self._recommendations: list[tuple[int, Instant]] = [(current_replicas, now)]
        self._additions: list[tuple[int, Instant]] = []
        self._removals: list[tuple[int, Instant]] = []

    def allow_by_default(self, recommendation: int, bounds: ReplicaBounds, now: Instant) -> AllowedReplicas:
        """Return the allowed replicas without a behavior: at most twice as many, and fewer only after five minutes."""
        cutoff = now - SCALE_DOWN_WINDOW
        recent = [replicas for replicas, at in self._recommendations if at >= cutoff]
        stabilized = max([recommendation, *recent])
        _replace_last_before(self._recommendations, cutoff, (recommendation, now))
        able = _READY if stabilized == recommendation else _SCALE_DOWN_STABILIZED
        replicas, limit = _within_default_limits(stabilized, bounds)
        return AllowedReplicas(replicas, able, limit, replicas != stabilized)

    def allow_by_behavior(
        self, recommendation: int, bounds: ReplicaBounds, behavior: Mapping[str, Any], now: Instant
    ) -> AllowedReplicas:
        """Return the replicas that the stabilization windows and then the policies of a behavior allow."""
        up_rules, down_rules = behavior["scaleUp"], behavior["scaleDown"]
        stabilized = self._stabilize(
            recommendation, bounds.current, _window_of(up_rules, 0), _down_window(down_rules), now
        )
        stabilized_reason = _SCALE_UP_STABILIZED if recommendation >= bounds.current else _SCALE_DOWN_STABILIZED
        able = _READY if stabilized == recommendation else stabilized_reason
        replicas, limit = stabilized, _WITHIN_RANGE
        if stabilized > bounds.current:
            highest = max(self._limit(bounds.current, up_rules, now, is_up=True), bounds.current)
            allowed, reason = (highest, _SCALE_UP_LIMIT) if bounds.maximum > highest else (bounds.maximum, _TOO_MANY)
            if stabilized > allowed:
                replicas, limit = allowed, reason
        elif stabilized < bounds.current:
            lowest = min(self._limit(bounds.current, down_rules, now, is_up=False), bounds.current)
            allowed, reason = (lowest, _SCALE_DOWN_LIMIT) if bounds.minimum < lowest else (bounds.minimum, _TOO_FEW)
            if stabilized < allowed:
                replicas, limit = allowed, reason
        return AllowedReplicas(replicas, able, limit, replicas != stabilized)

    def record_rescale(self, old: int, new: int, behavior: Mapping[str, Any], now: Instant) -> None:
        """Record a rescale, which the policies of a behavior count."""
        rules = behavior["scaleUp" if new > old else "scaleDown"]
        periods = [policy["periodSeconds"] * SECOND for policy in rules.get("policies") or ()]
        cutoff = now - max(periods, default=0)
        _replace_last_before(self._additions if new > old else self._removals, cutoff, (abs(new - old), now))

    def _stabilize(
        self, recommendation: int, current: int, up_window: Duration, down_window: Duration, now: Instant
    ) -> int:
        up_cutoff, down_cutoff = now - up_window, now - down_window
        lowest = min([recommendation, *(replicas for replicas, at in self._recommendations if at > up_cutoff)])
        highest = max([recommendation, *(replicas for replicas, at in self._recommendations if at > down_cutoff)])
        _replace_last_before(self._recommendations, min(up_cutoff, down_cutoff), (recommendation, now))
        return min(max(current, lowest), highest)

    def _limit(self, current: int, rules: Mapping[str, Any], now: Instant, *, is_up: bool) -> int:
        select_policy = rules.get("selectPolicy") or "Max"
        if select_policy == "Disabled":
            return current
        proposals = []
        for policy in rules.get("policies") or ():
            cutoff = now - policy["periodSeconds"] * SECOND
            start = current - _total_since(self._additions, cutoff) + _total_since(self._removals, cutoff)
            proposals.append(_proposal_up(start, policy) if is_up else _proposal_down(start, policy))
        # The largest change is the highest number of replicas when scaling up, and the lowest when scaling down.
        select: Callable[[Sequence[int]], int] = max if (select_policy == "Max") is is_up else min
        return select(proposals)


def _proposal_up(start: int, policy: Mapping[str, Any]) -> int:
    value: int = policy["value"]
    proposal = start + value if policy["type"] == "Pods" else ceil(start * (1 + value / 100))
    return min(proposal, _REPLICAS_MAX)


def _proposal_down(start: int, policy: Mapping[str, Any]) -> int:
    value: int = policy["value"]
    return start - value if policy["type"] == "Pods" else int(start * (1 - value / 100))


def _within_default_limits(recommendation: int, bounds: ReplicaBounds) -> tuple[int, Reason]:
    rate_limit = max(_SCALE_UP_FACTOR * bounds.current, _SCALE_UP_MINIMUM)
    highest, reason = (rate_limit, _SCALE_UP_LIMIT) if bounds.maximum > rate_limit else (bounds.maximum, _TOO_MANY)
    if recommendation < bounds.minimum:
        return bounds.minimum, _TOO_FEW
    return (highest, reason) if recommendation > highest else (recommendation, _WITHIN_RANGE)


def _replace_last_before(entries: list[tuple[int, Instant]], cutoff: Instant, new: tuple[int, Instant]) -> None:
    """Replace the last entry from before the cutoff by a new one, or append the new one if there is none."""
    old_indexes = [index for index, (_, at) in enumerate(entries) if at < cutoff]
    if old_indexes:
        entries[old_indexes[-1]] = new
    else:
        entries.append(new)


def _total_since(entries: Sequence[tuple[int, Instant]], cutoff: Instant) -> int:
    return sum(count for count, at in entries if at > cutoff)


def _window_of(rules: Mapping[str, Any], default: Duration) -> Duration:
    seconds = rules.get("stabilizationWindowSeconds")
    return default if seconds is None else int(seconds) * SECOND


def _down_window(rules: Mapping[str, Any]) -> Duration:
    return _window_of(rules, SCALE_DOWN_WINDOW)
