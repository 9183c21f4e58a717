"""How many store events a second the kernel, store, client and runner carry with a few small controllers.

    python benchmarks/store_events.py [--jobs 10000] [--seed 7] [--repeat 3] [--profile]

One simulated day: suspended Jobs arrive, a gate of a higher rank starts them in order of arrival while there is room,
a Job controller makes their Pods, and a kubelet runs those. Counts CPU time, without imports. Prints a row of a table
and the digest of all events, which depends on the jobs and the seed alone; it is taken in a run of its own.
"""

import argparse
import cProfile
import hashlib
import pstats
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from batchyard.api.meta import Key, Obj, with_path, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.base import fnv1a_64
from batchyard.base.instant import SECOND, Instant
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import Create, EventType, Reader, Update, UpdateStatus, WatchEvent, WriteResult
from batchyard.interfaces.controller import ReconcileResult
from batchyard.store.memory import Store

JOB, POD = "Job.batch", "Pod"
ADDED, DELETED = EventType.ADDED, EventType.DELETED  # members are slow to look up by name
START = parse_time("2026-01-01T00:00:00Z")
ROOM = 1500  # Jobs that may run at once


class JobController:
    """Makes the Pods of started Jobs and completes a Job when all have succeeded."""

    name, rank, kinds = "job", 0, (JOB, POD)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        if event.key.kind == JOB:
            return (event.key,)
        owner = event.obj["metadata"]["ownerReferences"][0]["name"]
        return (Key(JOB, event.key.namespace, owner),)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        job = reader.get(key)
        if job is None or job["spec"]["suspend"] or "completionTime" in job.get("status", {}):
            return ReconcileResult()
        pods = reader.owned_by(job["metadata"]["uid"], key.namespace)
        wanted = job["spec"]["parallelism"]
        if sum(pod.get("status", {}).get("phase") == "Succeeded" for pod in pods) == wanted:
            return ReconcileResult([UpdateStatus(with_status(job, {"completionTime": format_time(now)}))])
        return ReconcileResult([Create(pod_of(job, index)) for index in range(len(pods), wanted)])


class Kubelet:
    """Runs each Pod for the seconds it asks for."""

    name, rank, kinds = "kubelet", 0, (POD,)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        return () if event.type is DELETED else (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        pod = reader.get(key)
        if pod is None:
            return ReconcileResult()
        status = pod.get("status")
        if status is None:
            return ReconcileResult(
                [UpdateStatus(with_status(pod, {"phase": "Running", "startTime": format_time(now)}))]
            )
        if status["phase"] == "Succeeded":
            return ReconcileResult()
        end = parse_time(status["startTime"]) + pod["spec"]["activeDeadlineSeconds"] * SECOND
        if now < end:
            return ReconcileResult(requeue_at=end)
        return ReconcileResult([UpdateStatus(with_status(pod, {**status, "phase": "Succeeded"}))])


class Gate:
    """Starts suspended Jobs in order of arrival while there is room. One key stands for the whole queue."""

    name, rank, kinds = "gate", 10, (JOB,)
    key = Key("Gate", "", "all")

    def __init__(self) -> None:
        self.pending: dict[Key, None] = {}
        self.running: dict[Key, None] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        if event.type is ADDED:
            self.pending[event.key] = None
        elif "completionTime" in event.obj.get("status", {}):
            self.running.pop(event.key, None)
        else:
            return ()
        return (self.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        started = list(self.pending)[: max(0, ROOM - len(self.running))]
        writes = []
        for job_key in started:
            del self.pending[job_key]
            self.running[job_key] = None
            job = reader.get(job_key)
            assert job is not None
            writes.append(Update(with_path(job, ("spec", "suspend"), False)))
        return ReconcileResult([*writes])


def job_of(seed: int, number: int) -> Obj:
    """The Job of that number, its size and seconds drawn from the seed."""
    draw = fnv1a_64(f"{seed}/{number}/size")
    pod = {"containers": [{"name": "main", "image": "trainer:1", "resources": {"requests": {"cpu": "4"}}}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"job-{number}",
            "namespace": f"team-{number % 20}",
            "labels": {"kueue.x-k8s.io/queue-name": f"queue-{number % 20}"},
        },
        "spec": {
            "suspend": True,
            "parallelism": 1 + draw % 7,
            "activeDeadlineSeconds": 60 + draw // 7 % 7140,
            "template": {"spec": {**pod, "restartPolicy": "Never"}},
        },
    }


def pod_of(job: Obj, index: int) -> Obj:
    """A Pod of a Job."""
    metadata, spec = job["metadata"], job["spec"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-{index}",
            "namespace": metadata["namespace"],
            "labels": {"job-name": metadata["name"]},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {**spec["template"]["spec"], "activeDeadlineSeconds": spec["activeDeadlineSeconds"]},
    }


@dataclass(slots=True)
class World:
    """All that one run is made of."""

    kernel: VirtualEventLoop
    store: Store
    client: LocalClient
    runner: Runner


def world_of(seed: int, jobs: int) -> World:
    """A day of arrivals, ready to run."""
    kernel = VirtualEventLoop(START)
    store = Store(window=32)  # nobody watches, and what is forgotten early is still in the cache
    client = LocalClient(store, kernel, seed)
    runner = Runner(kernel, client, [JobController(), Kubelet(), Gate()])
    for number in range(jobs):
        arrival = START + fnv1a_64(f"{seed}/{number}/arrival") % 86_400 * SECOND
        write = Create(job_of(seed, number))
        kernel.call_at(arrival, lambda write=write: client.submit([write], must_succeed))  # type: ignore[misc]
    return World(kernel, store, client, runner)


def must_succeed(result: WriteResult) -> None:
    """Nothing here may fail."""
    assert result.error is None, result.error


def digest_of(seed: int, jobs: int) -> str:
    """The digest of all events of a run, which nothing but its arguments may change."""
    world = world_of(seed, jobs)
    digest = hashlib.sha256()

    def record(events: Sequence[WatchEvent]) -> None:
        for event in events:
            uid = event.obj["metadata"]["uid"]
            digest.update(f"{world.kernel.now()} {event.type} {event.key!r} {uid} {event.revision}\n".encode())

    world.client.subscribe(record)
    world.kernel.run()
    return digest.hexdigest()[:16]


class Measurement(NamedTuple):
    """One run: CPU seconds, and how much was done in them."""

    seconds: float
    events: int
    reconciles: int
    steps: int


def measure(seed: int, jobs: int) -> Measurement:
    """Run a day, and see that all of it was done."""
    world = world_of(seed, jobs)
    begin = time.process_time()
    world.kernel.run()
    seconds = time.process_time() - begin
    completed = sum("completionTime" in job.get("status", {}) for job in world.store.list(JOB))
    assert completed == jobs, f"{completed} of {jobs} jobs completed"
    return Measurement(seconds, world.store.revision, world.runner.reconciles, world.kernel.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--repeat", type=int, default=3, help="the fastest run counts; 0 only takes the digest")
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    chosen = parser.parse_args()
    if chosen.profile:
        world, profile = world_of(chosen.seed, chosen.jobs), cProfile.Profile()
        profile.runcall(world.kernel.run)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    runs = [measure(chosen.seed, chosen.jobs) for _ in range(chosen.repeat)]
    if runs:
        best = min(runs)
        print("| jobs | store events | reconciles | kernel steps | CPU s | events/s |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: |")
        print(
            f"| {chosen.jobs:,} | {best.events:,} | {best.reconciles:,} | {best.steps:,} "
            f"| {best.seconds:.2f} | {best.events / best.seconds:,.0f} |"
        )
    print(f"digest {digest_of(chosen.seed, chosen.jobs)}")


if __name__ == "__main__":
    main()
