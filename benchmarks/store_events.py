"""Measures the store events per CPU second of the event loop, store, client and runner, with three small controllers.

    python benchmarks/store_events.py [--jobs 10000] [--seed 7] [--repeat 3] [--profile]

Simulates one day. Suspended Jobs arrive; an admission gate with a higher rank starts them in order of arrival, up to a
limit of running Jobs. A Job controller creates their Pods, and a kubelet runs the Pods. The CPU time excludes imports.
Prints a table row, and the digest of all events of a separate run. The digest depends only on --jobs and --seed.
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
from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import fnv1a_64
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import Create, EventType, Reader, Update, UpdateStatus, WatchEvent, WriteResult
from batchyard.interfaces.controller import ReconcileResult
from batchyard.store.memory import Store

JOB, POD = "Job.batch", "Pod"
ADDED, DELETED = EventType.ADDED, EventType.DELETED  # attribute access on an enum is slow
START = parse_time("2026-01-01T00:00:00Z")
RUNNING_JOBS_MAX = 1500


class JobController:
    """Creates the Pods of started Jobs, and completes a Job when all of its Pods have succeeded."""

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
        parallelism = job["spec"]["parallelism"]
        if sum(pod.get("status", {}).get("phase") == "Succeeded" for pod in pods) == parallelism:
            return ReconcileResult([UpdateStatus(with_status(job, {"completionTime": format_time(now)}))])
        return ReconcileResult([Create(make_pod(job, index)) for index in range(len(pods), parallelism)])


class Kubelet:
    """Runs each Pod for its activeDeadlineSeconds."""

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


class AdmissionGate:
    """Starts suspended Jobs in order of arrival, up to RUNNING_JOBS_MAX; one key represents the whole queue."""

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
        started = list(self.pending)[: max(0, RUNNING_JOBS_MAX - len(self.running))]
        writes = []
        for job_key in started:
            del self.pending[job_key]
            self.running[job_key] = None
            job = reader.get(job_key)
            assert job is not None
            writes.append(Update(with_path(job, ("spec", "suspend"), False)))
        return ReconcileResult([*writes])


def make_job(seed: int, number: int) -> Obj:
    """Return the Job with a number; its parallelism and run time are derived from the seed."""
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


def make_pod(job: Obj, index: int) -> Obj:
    """Return the Pod of a Job with an index."""
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
class BenchmarkWorld:
    """The components of one run."""

    kernel: VirtualEventLoop
    store: Store
    client: LocalClient
    runner: Runner


def make_world(seed: int, jobs: int) -> BenchmarkWorld:
    """Return the components of a run, with the Jobs of one day scheduled to arrive."""
    kernel = VirtualEventLoop(START)
    store = Store(window=32)  # small, because no watch resumes from an old revision
    client = LocalClient(store, kernel, seed)
    runner = Runner(kernel, client, [JobController(), Kubelet(), AdmissionGate()])
    for number in range(jobs):
        arrival = START + fnv1a_64(f"{seed}/{number}/arrival") % 86_400 * SECOND
        write = Create(make_job(seed, number))
        kernel.call_at(arrival, lambda write=write: client.submit([write], assert_success))  # type: ignore[misc]
    return BenchmarkWorld(kernel, store, client, runner)


def assert_success(result: WriteResult) -> None:
    """Raise an AssertionError if a write has failed."""
    assert result.error is None, result.error


def event_digest(seed: int, jobs: int) -> str:
    """Return the digest of all events of a run; it depends only on the arguments."""
    world = make_world(seed, jobs)
    digest = hashlib.sha256()

    def record(events: Sequence[WatchEvent]) -> None:
        for event in events:
            uid = event.obj["metadata"]["uid"]
            digest.update(f"{world.kernel.now()} {event.type} {event.key!r} {uid} {event.revision}\n".encode())

    world.client.subscribe(record)
    world.kernel.run()
    return digest.hexdigest()[:16]


class StoreThroughput(NamedTuple):
    """The CPU seconds of one run, and the numbers of its store events, reconciles and event loop steps."""

    seconds: float
    events: int
    reconciles: int
    steps: int


def measure(seed: int, jobs: int) -> StoreThroughput:
    """Run one day, and check that all Jobs have completed."""
    world = make_world(seed, jobs)
    start = time.process_time()
    world.kernel.run()
    seconds = time.process_time() - start
    completed = sum("completionTime" in job.get("status", {}) for job in world.store.list(JOB))
    assert completed == jobs, f"{completed} of {jobs} jobs completed"
    return StoreThroughput(seconds, world.store.revision, world.runner.reconciles, world.kernel.steps)


def main() -> None:
    """Run all measurements, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--repeat", type=int, default=3, help="number of runs; the fastest one counts; 0 prints only the digest"
    )
    parser.add_argument(
        "--profile", action="store_true", help="print the functions with the most CPU time, and no table"
    )
    arguments = parser.parse_args()
    if arguments.profile:
        world, profile = make_world(arguments.seed, arguments.jobs), cProfile.Profile()
        profile.runcall(world.kernel.run)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    runs = [measure(arguments.seed, arguments.jobs) for _ in range(arguments.repeat)]
    if runs:
        best = min(runs)
        print("| jobs | store events | reconciles | event loop steps | CPU s | events/s |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: |")
        print(
            f"| {arguments.jobs:,} | {best.events:,} | {best.reconciles:,} | {best.steps:,} "
            f"| {best.seconds:.2f} | {best.events / best.seconds:,.0f} |"
        )
    print(f"digest {event_digest(arguments.seed, arguments.jobs)}")


if __name__ == "__main__":
    main()
