"""Kubernetes Events of what controllers record: written as objects, each told once and then counted.

A record like one before (the same object, reason and message from the same component) raises that Event's count. Of
records alike but for their messages the eleventh and all later within ten minutes become one Event that says so. Of
one object a component tells at most a burst of 25, and one more every five minutes. What is remembered for that is
bounded, and lost in a crash: then an Event is told anew. Source: client-go, tools/record/events_cache.go. What does
the part of a component that writes Events of the newer sort has them made by `event_series.py`, within the same bound:
client-go sets none there, and who waits for long and is told why again and again would fill the memory.
"""

from dataclasses import dataclass
from itertools import count
from typing import Final, TypeAlias

from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.times import format_time
from batchyard.base.instant import MINUTE, Instant
from batchyard.base.remembered import Remembered
from batchyard.controllers.event_series import COMPONENTS, EventSeries, event_name, let_it_be, reference_to
from batchyard.ports.client import Client, Create, Update
from batchyard.ports.controller import EventRecord

BURST: Final = 25
REFILL: Final = 5 * MINUTE
SIMILAR_MAX: Final = 10
SIMILAR_WITHIN: Final = 10 * MINUTE
_COMBINED: Final = "(combined from similar events): "

#: What each controller is called where it does the part of a component that people know.
_COMPONENTS: Final = {
    "autoscaler": "cluster-autoscaler",
    "disruption-budgets": "controllermanager",
    "job": "batch/job-kueue-controller",
    "job-pods": "job-controller",
    "jobset": "jobset.x-k8s.io/jobset-kueue-controller",
    "jobset-controller": "jobset",
    "kubelets": "kubelet",
    "local-kubelet": "kubelet",
    "local-node": "kubelet",
    "node-agents": "kubelet",
    "node-health": "node-controller",
    "placement": "default-scheduler",
    "provisioning": "ProvisioningController",
    "provisioning-requests": "cluster-autoscaler",
    "scheduler": "kueue-admission",
    "taint-eviction": "taint-eviction-controller",
    "workload": "kueue-workload-controller",
}


def component_of(controller: str) -> str:
    """What a controller is called where it does the part of a component that people know."""
    return _COMPONENTS.get(controller, controller)


#: What is counted where it is told again: by whom, of what, its type, its reason, its message.
_Told: TypeAlias = tuple[str, Key, str, str, str]


@dataclass(slots=True)
class _Similar:
    """The messages that were told alike but for them, and when the last was."""

    since: Instant
    messages: dict[str, None]


@dataclass(slots=True)
class _Budget:
    """How many more may be told of an object, and as of when."""

    since: Instant
    left: float


class EventRecorder:
    """An EventSink that writes to a client; `host` is the machine that Events are told from."""

    def __init__(self, client: Client, host: str) -> None:
        self._client = client
        self._numbers = count(1)
        self._series = EventSeries(client, host, self._numbers)
        self._told: Remembered[_Told, Key] = Remembered()
        self._similar: Remembered[tuple[str, Key, str, str], _Similar] = Remembered()
        self._budget: Remembered[tuple[str, Key], _Budget] = Remembered()

    def __call__(self, now: Instant, controller: str, record: EventRecord) -> None:
        """Record an event, unless too much was told of its object already."""
        component = component_of(controller)
        if component in COMPONENTS:
            if self._may_tell(now, component, record.regarding):
                self._series.tell(now, component, record)
            return
        regarding, type_, reason, message, _ = record
        told = message
        if self._is_one_of_many(now, (component, regarding, type_, reason), message):
            told, message = _COMBINED, _COMBINED + message
        if self._may_tell(now, component, regarding):
            self._tell(now, (component, regarding, type_, reason, told), message)

    def _tell(self, now: Instant, told: _Told, message: str) -> None:
        """Count the Event of what was told before, or make one."""
        known = self._told.recall(told)
        stored = self._client.get(known) if known is not None else None
        if stored is not None:
            times = stored.get("count", 1) + 1
            again = {**stored, "message": message, "count": times, "lastTimestamp": format_time(now)}
            self._client.submit([Update(again)], let_it_be)
            return
        event = self._event(now, told, message)
        self._told.remember(told, key_of(event))
        self._client.submit([Create(event)], let_it_be)

    def _is_one_of_many(self, now: Instant, key: tuple[str, Key, str, str], message: str) -> bool:
        """Whether so many were told that differ from it only in their messages that they are told as one."""
        similar = self._similar.recall(key)
        if similar is None:
            self._similar.remember(key, _Similar(now, {message: None}))
            return False
        if now - similar.since > SIMILAR_WITHIN:
            similar.messages = {}
        messages, similar.since = similar.messages, now
        messages[message] = None
        if len(messages) > SIMILAR_MAX + 1:
            del messages[next(iter(messages))]
        return len(messages) > SIMILAR_MAX

    def _may_tell(self, now: Instant, component: str, regarding: Key) -> bool:
        """Take one from what may be told of an object; False if there is nothing left."""
        budget = self._budget.recall((component, regarding))
        if budget is None:
            self._budget.remember((component, regarding), _Budget(now, BURST - 1.0))
            return True
        left = min(float(BURST), budget.left + (now - budget.since) / REFILL)
        may = left >= 1
        budget.since, budget.left = now, left - 1 if may else left
        return may

    def _event(self, now: Instant, told: _Told, message: str) -> Obj:
        component, key, type_, reason, _ = told
        at = format_time(now)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": event_name(key, now, next(self._numbers)),
                "namespace": key.namespace or "default",
            },
            "involvedObject": reference_to(self._client, key),
            "reason": reason,
            "message": message,
            "source": {"component": component},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
            "type": type_,
            "reportingComponent": component,
            "reportingInstance": "",
        }
