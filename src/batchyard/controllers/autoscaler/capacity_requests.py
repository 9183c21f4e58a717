"""ProvisioningRequests that room is looked for, or made, in the pools there are: checked, or helped as a whole.

The classes check-capacity and best-effort-atomic-scale-up. Who was refused is tried again after a minute, then later
and later. Source: kubernetes-sigs/cluster-autoscaler, pkg/provisioningrequest/{checkcapacity,besteffortatomic} and
pkg/processors/provreq.
"""

from collections.abc import Sequence
from typing import Final

from batchyard.api.meta import Obj, key_of
from batchyard.api.views.pods import PodView
from batchyard.base.instant import MINUTE, Instant
from batchyard.controllers.autoscaler.failures import Failures
from batchyard.controllers.autoscaler.index import ScalingIndex
from batchyard.controllers.autoscaler.trial import Trial, requested_pods, template_keys
from batchyard.core.machines.instances import new_instance
from batchyard.core.scaling.demand import Placings, Unit
from batchyard.core.scaling.request_states import (
    BOOKING_TIME,
    CAPACITY_FOUND,
    CAPACITY_LATER,
    CAPACITY_MADE,
    CAPACITY_NEVER,
    CHECK_CLASS,
    CONSUMED,
    EXPIRED,
    EXPIRES_AFTER,
    FAILED,
    KEPT_FOR,
    PROVISIONED,
    RESERVATION_OVER,
    TAKEN_UP,
    Said,
    State,
    created,
    parameter,
    since,
    state_of,
    tell_missing,
    telling,
)
from batchyard.core.scaling.scale_up import Situation
from batchyard.ports.client import Create, Delete, Reader, UpdateStatus, Write
from batchyard.ports.controller import Outcome

_FIRST_WAIT: Final = MINUTE
_LONGEST_WAIT: Final = 10 * MINUTE


class CapacityRequest:
    """One request at one instant."""

    def __init__(self, request: Obj, index: ScalingIndex, reader: Reader, situation: Situation) -> None:
        self._request = request
        self._key = key_of(request)
        self._index = index
        self._reader = reader
        self._situation = situation
        self._now = situation.now

    def step(self) -> Outcome:
        """What is to be done now, and when to look again."""
        match state_of(self._request):
            case State.FAILED:
                return self._end(since(self._request, FAILED))
            case State.BOOKING_EXPIRED | State.CAPACITY_REVOKED:
                return self._end(since(self._request, PROVISIONED))
            case State.PROVISIONED:
                return self._keep_room()
            case _:
                return self._provision()

    def _end(self, over: Instant | None) -> Outcome:
        due = (self._now if over is None else over) + KEPT_FOR
        return Outcome([Delete(self._key)]) if due <= self._now else Outcome(requeue_at=due)

    def _keep_room(self) -> Outcome:
        """Keep room until all pods have come, or for ten minutes."""
        due = (since(self._request, PROVISIONED) or self._now) + BOOKING_TIME
        count = sum(pod_set["count"] for pod_set in self._request["spec"]["podSets"])
        if len(self._index.consumers.get(self._key, ())) >= count:
            return self._tell(CONSUMED)
        return self._tell(RESERVATION_OVER) if due <= self._now else Outcome(requeue_at=due)

    def _provision(self) -> Outcome:
        """Look for room, or make it, if it is time."""
        expires = created(self._request) + EXPIRES_AFTER
        if expires <= self._now:
            return self._tell(EXPIRED)
        refused = since(self._request, PROVISIONED)
        if refused is not None:
            due, upcoming = next_tries(refused, self._now, self._situation.settings.scan_interval)
            if not due:
                return Outcome(requeue_at=min(expires, upcoming))
        pods = requested_pods(self._request, self._reader)
        if pods is None:
            missing = [key.name for key in template_keys(self._request) if self._reader.get(key) is None]
            return self._tell(Said(FAILED, True, "FailedToCreatePods", tell_missing(self._request, missing)))
        with self._index.nodes.what_if():
            said, writes = self._try(pods)
        told = telling(telling(self._request, TAKEN_UP, self._now), said, self._now)
        writes += [UpdateStatus(told)] if told is not self._request else []
        return Outcome(writes, requeue_at=self._now + _FIRST_WAIT if said is CAPACITY_LATER else None)

    def _try(self, pods: Sequence[PodView]) -> tuple[Said, list[Write]]:
        """Whether all the pods have room, and what is to be done for that."""
        trial = Trial(self._index, self._reader, self._situation, Failures(self._index, self._reader, self._now))
        trial.prepare()
        if self._request["spec"]["provisioningClassName"] == CHECK_CLASS:
            if not Placings(self._index.nodes).put(pods):
                return CAPACITY_FOUND, []
            return CAPACITY_NEVER if parameter(self._request, "noRetry") == "true" else CAPACITY_LATER, []
        scale_up = trial.scale_up
        if not scale_up.help(Unit(pods, is_gang=True)):
            return CAPACITY_LATER, []
        writes: list[Write] = [Create(pool) for pool in scale_up.pools]
        for group, count in scale_up.increases.items():
            writes += [Create(new_instance(group.pool, group.name.zone, self._situation.cluster))] * count
        return CAPACITY_MADE if writes else CAPACITY_FOUND, writes

    def _tell(self, said: Said) -> Outcome:
        told = telling(self._request, said, self._now)
        return Outcome() if told is self._request else Outcome([UpdateStatus(told)])


def next_tries(refused: Instant, now: Instant, interval: int) -> tuple[bool, Instant]:
    """Whether a try is due, and when the next one is: a minute after the first refusal, then twice that, and so on."""
    wait, due = _FIRST_WAIT, refused + _FIRST_WAIT
    while due <= now:
        if due > now - interval:
            return True, due
        wait = min(2 * wait, _LONGEST_WAIT)
        due += wait
    return False, due
