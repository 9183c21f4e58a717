"""Replays the writes of upstream Kueue at their times: the objects of a scenario, and the decisions of its log.

The caller supplies the destination. Evictions complete at once, as in the recording.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, Obj, find_condition, format_amount, is_true, key_of
from batchyard.api.times import format_time
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import uid_for
from batchyard.scheduling.messages import preemption_message
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.sim.scenario import Scenario, make_scenario
from batchyard.sim.world import EPOCH, merge_applied

Record = Mapping[str, Any]


class ObjectSink(Protocol):
    """A destination of objects."""

    def get(self, key: Key) -> Obj | None:
        """Return an object, or None."""

    def put(self, obj: Obj) -> None:
        """Create or replace an object with its status."""

    def delete(self, key: Key) -> None:
        """Delete an object."""


class TimedWrites(NamedTuple):
    """The ordered writes of an instant."""

    at: Instant
    work: Callable[[], None]


class Upstream:
    """A replay of a scenario and its log."""

    def __init__(self, place: ObjectSink, scenario: Scenario, log: list[Record], start: Instant = EPOCH) -> None:
        self._place = place
        self._scenario = scenario
        self._log = log
        self._start = start
        self._applied: dict[Key, Obj] = {}
        self._workloads: dict[Key, None] = {}

    def moments(self) -> Iterator[TimedWrites]:
        """Yield all writes, in order of time."""
        steps = {step.at: step for step in self._scenario.steps}
        records: dict[int, list[Record]] = {}
        for record in self._log:
            if record["event"] != "Final":
                records.setdefault(round(record["time"] * SECOND), []).append(record)
        for at in sorted({**dict.fromkeys(steps), **dict.fromkeys(records)}):
            now = self._start + at
            step = steps.get(at)
            for obj in step.apply if step is not None else ():
                yield TimedWrites(now, partial(self._apply, obj, now))
            for key in step.delete if step is not None else ():
                yield TimedWrites(now, partial(self._delete, key))
            yield TimedWrites(now, partial(self._put_back, now))
            for record in records.get(at, ()):
                yield TimedWrites(now, partial(self._decide, record, now))
                yield TimedWrites(now, partial(self._release, record, now))

    def _apply(self, obj: Obj, now: Instant) -> None:
        key = key_of(obj)
        known, last = self._place.get(key), self._applied.get(key)
        self._applied[key] = obj
        if known is not None:
            self._place.put(merge_applied(known, last or {}, obj))
            return
        metadata = {"uid": uid_for(0, *key), "creationTimestamp": format_time(now), "generation": 1, **obj["metadata"]}
        self._place.put({**obj, "metadata": metadata})
        if key.kind == scheme.WORKLOAD:
            self._workloads[key] = None

    def _delete(self, key: Key) -> None:
        self._workloads.pop(key, None)
        if self._place.get(key) is not None:
            self._place.delete(key)

    def _put_back(self, now: Instant) -> None:
        """Requeue the Workloads of restarted queues, and reactivated Workloads."""
        for key in self._workloads:
            obj = self._place.get(key)
            blocked = obj is not None and find_condition(obj, evictions.REQUEUED)
            if obj is None or not blocked or blocked["status"] != "False":
                continue
            if lifecycle.is_active(obj) and self._is_open(obj):
                self._place.put(
                    evictions.set_requeued(obj, lifecycle.CLUSTER_QUEUE_RESTARTED, "The ClusterQueue goes on", now)
                )

    def _is_open(self, workload: Obj) -> bool:
        local = self._place.get(
            Key(scheme.LOCAL_QUEUE, workload["metadata"]["namespace"], workload["spec"]["queueName"])
        )
        queue = local and self._place.get(Key(scheme.CLUSTER_QUEUE, "", local["spec"]["clusterQueue"]))
        return all(each and (each["spec"].get("stopPolicy") or "None") == "None" for each in (local, queue))

    def _decide(self, record: Record, now: Instant) -> None:
        obj = self._place.get(_key(record["workload"]))
        if obj is None:
            return
        match record["event"]:
            case "QuotaReserved":
                self._place.put(lifecycle.reserve_quota(obj, admission_of(record, obj), now, admitted=True, checks=[]))
            case "Preempted":
                self._place.put(self._preempted(obj, record, now))
            case "Evicted":
                self._place.put(evictions.evict(obj, reason=record["reason"], message="it is to stop", now=now))
            case "Finished":
                self._place.put(lifecycle.finish(obj, lifecycle.SUCCEEDED, "Job finished successfully", now))

    def _preempted(self, obj: Obj, record: Record, now: Instant) -> Obj:
        by = self._place.get(_key(record["by"]))
        uid = "" if by is None else by["metadata"]["uid"]
        message = preemption_message(uid, "", record["reason"], "/", "/")
        return evictions.evict(
            obj, reason=evictions.EVICTED_BY_PREEMPTION, message=message, now=now, preemption=record["reason"]
        )

    def _release(self, record: Record, now: Instant) -> None:
        """Release the quota of an evicted Workload."""
        obj = self._place.get(_key(record["workload"]))
        if record["event"] in {"Preempted", "Evicted"} and obj is not None and is_true(obj, lifecycle.EVICTED):
            self._place.put(evictions.release_after_eviction(obj, now))


def read_case(name: str, text: str, expected: str) -> tuple[Scenario, list[Record]]:
    """Read a scenario and its log."""
    return make_scenario(read_manifests([(name, text)])), [json.loads(line) for line in expected.splitlines()]


def admission_of(record: Record, workload: Obj) -> dict[str, Any]:
    """Return the admission of a record, with the requests of the pods."""
    templates = {pod_set.name: pod_set.template for pod_set in workload_view(workload).pod_sets}
    assignments = []
    for reported in record["podSets"]:
        requests = {"pods": 1, **dict(templates[reported["name"]].requests)}
        usage = {
            resource: format_amount(resource, requests.get(resource, 0) * reported["count"])
            for resource in reported["flavors"]
        }
        assignments.append({**reported, "resourceUsage": usage})
    return {"clusterQueue": record["clusterQueue"], "podSetAssignments": assignments}


def _key(workload: str) -> Key:
    return Key(scheme.WORKLOAD, *workload.split("/", 1))
