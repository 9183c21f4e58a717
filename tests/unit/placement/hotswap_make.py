"""Slices of four hosts, Jobs with an exclusive slice each, and candidates for eviction."""

from collections.abc import Mapping, Sequence
from typing import Any

import make
from batchyard.api import well_known
from batchyard.api.meta import Key, Obj
from batchyard.api.views.pods import PodView, pod_view
from batchyard.jobs.jobset.exclusive_placement import mutate_pod
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.gang import PlacementClaim, placeholders
from batchyard.placement.hotswap import EvictionUnit
from unit.placement.placement_make import node, pod

HOSTS = 4
HIGH, LOW = 20, 10


class NoObjects:
    """A reader without objects: leaders need no other object."""

    def get(self, key: Key) -> Obj | None:
        return None

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        return ()


def slice_of(pool: str, hosts: int = HOSTS) -> list[Obj]:
    """The nodes of a slice; a pod of `worker` takes one of them."""
    return [node(f"{pool}-{number}", labels={well_known.NODE_POOL: pool}) for number in range(hosts)]


def worker(jobset: str, job: int, index: int, priority: int = LOW, **fields: Any) -> Obj:
    """A pod of a Job of a JobSet, before admission."""
    key = f"key-{jobset}-{job}"
    annotations = {
        well_known.WORKLOAD: f"jobset-{jobset}",
        well_known.JOB_SET_NAME: jobset,
        well_known.EXCLUSIVE_TOPOLOGY: well_known.NODE_POOL,
        well_known.COMPLETION_INDEX: str(index),
        **fields.pop("annotations", {}),
    }
    labels = {
        well_known.JOB_SET_UID: f"uid-{jobset}",
        well_known.JOB_KEY: key,
        well_known.JOB_SET_PRIORITY: str(priority),
        **fields.pop("labels", {}),
    }
    name = f"{jobset}-{job}-{index}"
    return pod(name, labels=labels, annotations=annotations, cpu="4", priority=priority, **fields)


def leader(jobset: str, job: int = 0, priority: int = HIGH, **fields: Any) -> Obj:
    """The first pod of such a Job, after admission."""
    return mutate_pod(worker(jobset, job, 0, priority, **fields), NoObjects())


def running(jobset: str, job: int, pool: str, priority: int = LOW, hosts: int = HOSTS) -> list[Obj]:
    """The pods of such a Job, each on a host of a slice."""
    first = leader(jobset, job, priority, nodeName=f"{pool}-0")
    return [first, *[worker(jobset, job, i, priority, nodeName=f"{pool}-{i}") for i in range(1, hosts)]]


def claim(jobset: str = "high", job: int = 0, size: int = HOSTS, **fields: Any) -> PlacementClaim:
    """The placement claim of such a Job of a pending JobSet."""
    obj = leader(jobset, job, **fields)
    return PlacementClaim((pod_view(obj), *placeholders(obj, size - 1)), well_known.NODE_POOL)


class EvictionUnits:
    """The eviction units: whole gangs and single pods, each with its lost work (default 1)."""

    def __init__(self, nodes: ClusterSnapshot, lost: Mapping[str, int], leaving: Sequence[str] = ()) -> None:
        self._nodes = nodes
        self._leaving = leaving
        self._lost = lost

    def __call__(self, pod: PodView) -> EvictionUnit | None:
        name = pod.gang.removeprefix("uid-") or pod.name
        lost = self._lost.get(name, 1)
        if lost < 0:
            return None
        pods = [p for n in self._nodes for p in n.pods.values() if p.gang == pod.gang] if pod.gang else [pod]
        return EvictionUnit(name, pods, lost, name in self._leaving)


def names(of: Sequence[EvictionUnit]) -> list[str]:
    """The names of eviction units."""
    return [occupant.name for occupant in of]


def running_since(seconds_after: float) -> Any:
    """The status of a pod that runs since this time."""
    since = make.stamp(seconds_after)
    return {"phase": "Running", "startTime": since, "containerStatuses": [{"state": {"running": {"startedAt": since}}}]}
