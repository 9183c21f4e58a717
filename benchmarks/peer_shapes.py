"""The loads that KAI and YuniKorn have published figures for, as Jobs in queues of batchyard.

Sources: test/e2e/scale of github.com/kai-scheduler/KAI-Scheduler, with docs/scale-tests/example-results.json of
2026-07-03; docs/performance/evaluate_perf_function_with_kwok.md of github.com/apache/yunikorn-site.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from peer_clusters import GPU, KUEUE, KUEUE_API, LEVELS, POOL, PeerCluster, pause

NODES, GANG_NODES, GPUS = 500, 512, 8
FILLER, RECLAIMER, BACKGROUND = "filler", "reclaimer", "background"
_SAMPLES: Final = 10
_GANG: Final = 10
#: A load ends if no pod gets a node within this number of seconds, and the programs of the cluster are idle.
_STALLED: Final = 60.0
_WAIT_MAX: Final = 1800.0  # seconds
#: CPU seconds and seconds of waiting for a CPU below which the programs count as idle.
_IDLE: Final = 5.0
_BATCH_PODS: Final = 5000
_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"


class PodCondition(msgspec.Struct):
    """A condition of an object in a watch event."""

    type: str
    status: str
    message: str = ""


class PeerStatus(msgspec.Struct):
    """The fields of a status that the shapes read."""

    conditions: list[PodCondition] = []


class PeerMetadata(msgspec.Struct):
    """The fields of metadata that the shapes read."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}


class PeerSpec(msgspec.Struct):
    """The field of a pod's spec that the shapes read."""

    node: str = msgspec.field(default="", name="nodeName")


class PeerObject(msgspec.Struct):
    """A pod or a Workload in a watch event."""

    metadata: PeerMetadata = msgspec.field(default_factory=PeerMetadata)
    spec: PeerSpec = msgspec.field(default_factory=PeerSpec)
    status: PeerStatus = msgspec.field(default_factory=PeerStatus)

    def true_conditions(self) -> set[str]:
        """Return the types of the conditions with the status True."""
        return {condition.type for condition in self.status.conditions if condition.status == "True"}


class PeerEvent(msgspec.Struct):
    """A watch event."""

    type: str
    object: PeerObject


_decode = msgspec.json.Decoder(PeerEvent).decode


class ShapeOutcome(NamedTuple):
    """What a shape measured: seconds by the peer's definition, and how many of its pods got a node."""

    seconds: float | None
    pods: int
    scheduled: int
    #: Further values of the raw data.
    details: Mapping[str, Any]


class StalledLoadError(Exception):
    """No pod got a node for some time although pods wait; the argument is the number of scheduled pods."""


class ObjectWatch:
    """The pods of all namespaces, and the Workloads, from watches of one client."""

    def __init__(self, cluster: PeerCluster) -> None:
        self._cluster = cluster
        self.pods: dict[str, PeerObject] = {}
        self.workloads: dict[str, PeerObject] = {}
        #: The uids of pods with a node by namespace.
        self.scheduled: dict[str, set[str]] = defaultdict(set)
        #: When the last pod of a namespace got its node, in seconds of the monotonic clock.
        self.last_at: dict[str, float] = {}
        #: The message of QuotaReserved=False by name of the Workload.
        self.reasons: dict[str, str] = {}
        self.finished: set[str] = set()
        self.evicted: set[str] = set()
        self._changed = asyncio.Event()
        self._tasks = [asyncio.ensure_future(self.follow(cluster, "/api/v1/pods", self._observe_pod))]
        self._tasks.append(asyncio.ensure_future(self.follow(cluster, f"{KUEUE}/workloads", self._observe_workload)))

    @staticmethod
    async def follow(cluster: PeerCluster, path: str, observe: Callable[[str, PeerObject], None]) -> None:
        """Pass each event of a watch, its type and its object, to a function; watch again when it ends."""
        while True:
            with suppress(ConnectionRefusedError):  # the storage of a new CRD is initialized
                async for line in cluster.client.stream_lines(f"{path}?watch=true"):
                    event = _decode(line)
                    observe(event.type, event.object)
            await pause(0.2)

    def _observe_pod(self, change: str, pod: PeerObject) -> None:
        self._changed.set()
        namespace, uid = pod.metadata.namespace, pod.metadata.uid
        scheduled = self.scheduled[namespace]
        if change == "DELETED":
            scheduled.discard(uid)
            self.pods.pop(uid, None)
            return
        self.pods[uid] = pod
        if "PodScheduled" in pod.true_conditions() and uid not in scheduled:
            scheduled.add(uid)
            self.last_at[namespace] = time.monotonic()

    def _observe_workload(self, change: str, workload: PeerObject) -> None:
        self._changed.set()
        name = workload.metadata.name
        if change == "DELETED":
            self.workloads.pop(name, None)
            return
        self.workloads[name] = workload
        true = workload.true_conditions()
        if "Finished" in true:
            self.finished.add(name)
        if "Evicted" in true:
            self.evicted.add(name)
        for condition in workload.status.conditions:
            if condition.type == "QuotaReserved" and condition.status == "False":
                self.reasons.setdefault(name, condition.message)

    async def wait_until(self, holds: Callable[[], bool], within: float) -> bool:
        """Wait until a condition holds after a watch event; False after a number of seconds."""
        deadline = time.monotonic() + within
        while not holds():
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(1.0, within))
            self._raise_failure()
            if time.monotonic() >= deadline:
                return holds()
        return True

    def _raise_failure(self) -> None:
        for task in self._tasks:
            assert not task.done(), task.exception() or "a watch has ended"

    async def all_scheduled(self, namespace: str, count: int) -> float:
        """Wait until this number of pods have nodes; return when the last pod got its node.

        Raises StalledLoadError if no pod gets a node for a minute although the programs of the cluster are idle.
        """
        seen, work = -1, 0.0
        deadline = time.monotonic() + _WAIT_MAX
        while len(self.scheduled[namespace]) != count:
            seen_before, seen = seen, len(self.scheduled[namespace])
            work_before, work = work, sum(self._cluster.cpu_seconds().values()) + self._cluster.waited_seconds()
            if (seen == seen_before and work - work_before < _IDLE) or time.monotonic() > deadline:
                raise StalledLoadError(seen)
            await self.wait_until(lambda: len(self.scheduled[namespace]) == count, _STALLED)
        return self.last_at[namespace]

    def close(self) -> None:
        """End the watches."""
        for task in self._tasks:
            task.cancel()


class ShapeRun:
    """A cluster with the queues and watches of one shape; each queue has a namespace of the same name."""

    def __init__(self, cluster: PeerCluster, watch: ObjectWatch, divisor: int = 1) -> None:
        self.cluster = cluster
        self.watch = watch
        #: The number of nodes and their GPUs; `divisor` divides all numbers of nodes, Jobs and pods.
        self.divisor = divisor
        self.nodes = NODES // divisor
        self.all_gpus = self.nodes * GPUS
        self.gang_pods = GANG_NODES // divisor
        self._numbers = iter(range(1_000_000))

    async def create_queues(self, quotas: Mapping[str, int], resource: str = GPU, **flavor: Any) -> None:
        """Create queues with nominal quotas in one Cohort, which lend idle quota and reclaim it."""
        meta = {"metadata": {"name": "nodes"}, "spec": flavor}
        await self.cluster.create(
            f"{KUEUE}/resourceflavors", {"apiVersion": KUEUE_API, "kind": "ResourceFlavor"} | meta
        )
        urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        await self.cluster.create(path, {**urgent, "metadata": {"name": "urgent"}})
        for name, quota in quotas.items():
            await self.cluster.create(
                "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            )
            for kind, folder, spec in self._queue_specs(name, resource, quota):
                obj = {"apiVersion": KUEUE_API, "kind": kind, "metadata": {"name": name}, "spec": spec}
                await self.cluster.create(f"{KUEUE}/{folder}", obj)
            await self.cluster.wait_until_active(name)

    def _queue_specs(self, name: str, resource: str, quota: int) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        flavor = {"name": "nodes", "resources": [{"name": resource, "nominalQuota": str(quota)}]}
        preemption = {"reclaimWithinCohort": "Any"}
        spec: dict[str, Any] = {"namespaceSelector": {}, "cohortName": "all", "preemption": preemption}
        spec |= {"resourceGroups": [{"coveredResources": [resource], "flavors": [flavor]}]}
        yield "ClusterQueue", "clusterqueues", spec
        yield "LocalQueue", f"namespaces/{name}/localqueues", {"clusterQueue": name}

    async def hold(self, queue: str, policy: str | None) -> None:
        """Set the stopPolicy of a ClusterQueue: `Hold`, or None to admit Workloads again."""
        await self.cluster.patch(f"{KUEUE}/clusterqueues/{queue}", {"spec": {"stopPolicy": policy or "None"}})

    async def submit(self, queue: str, jobs: int, pods: int = 1, **options: Any) -> list[str]:
        """Create Jobs concurrently; return their names. `options` are parameters of `job`."""
        objects = [job(f"j{next(self._numbers)}", queue, pods, **options) for _ in range(jobs)]
        await asyncio.gather(*(self.cluster.create(jobs_of(queue), each) for each in objects))
        return [each["metadata"]["name"] for each in objects]

    async def submit_held(self, queue: str, jobs: int, pods: int = 1, **options: Any) -> float:
        """Create Jobs while their queue is stopped, then start the queue; return when it was started."""
        await self.hold(queue, "Hold")
        path = f"{KUEUE}/namespaces/{queue}/workloads"
        before = await self.cluster.count_of(path)
        await self.submit(queue, jobs, pods, **options)
        await self.cluster.wait_for_count(path, before + jobs)
        started_at = time.monotonic()
        await self.hold(queue, None)
        return started_at

    async def delete_jobs(self, queue: str, names: Collection[str]) -> None:
        """Delete Jobs with their Workloads and, where no garbage collector runs, their pods."""
        paths = [f"{jobs_of(queue)}/{name}?propagationPolicy=Background" for name in names]
        if "operator" in self.cluster.programs:
            pods = (pod.metadata for pod in self.watch.pods.values() if job_of(pod) in names)
            paths += [f"/api/v1/namespaces/{queue}/pods/{each.name}" for each in pods]
            jobs = {f"job-{name}" for name in names}
            workloads = (name for name in self.watch.workloads if name.rpartition("-")[0] in jobs)
            paths += [f"{KUEUE}/namespaces/{queue}/workloads/{name}" for name in workloads]
        responses = await asyncio.gather(*(self.cluster.client.request("DELETE", path) for path in paths))
        assert all(code in (200, 202, 404) for code, _ in responses), responses

    async def delete_from_all_nodes(self, queue: str, count: int) -> None:
        """Delete the Jobs of this number of pods on each node, and wait until their pods are gone."""
        counts: dict[str, int] = defaultdict(int)
        names = set()
        for pod in self.watch.pods.values():
            if counts[pod.spec.node] < count:
                counts[pod.spec.node] += 1
                names.add(job_of(pod))
        remaining = len(self.watch.scheduled[queue]) - len(names)
        await self.delete_jobs(queue, names)
        gone = await self.watch.wait_until(lambda: len(self.watch.scheduled[queue]) == remaining, _WAIT_MAX)
        assert gone, f"{len(self.watch.scheduled[queue])} pods remain instead of {remaining}"

    async def fill(self) -> None:
        """Fill all GPUs with Jobs of one GPU, and wait until they have nodes."""
        await self.submit_held(FILLER, self.all_gpus, gpus=1)
        await self.watch.all_scheduled(FILLER, self.all_gpus)

    async def measure(
        self, queue: str, pods: int, start: Callable[[], Awaitable[float]], **details: Any
    ) -> ShapeOutcome:
        """Start a load, and measure the seconds until a number of pods of its queue have nodes."""
        started_at = await start()
        try:
            seconds = await self.watch.all_scheduled(queue, pods) - started_at
        except StalledLoadError:
            last = self.watch.last_at.get(queue, started_at) - started_at
            details = {"last pod scheduled after seconds": round(last, 1)}
            return ShapeOutcome(None, pods, len(self.watch.scheduled[queue]), details)
        return ShapeOutcome(seconds, pods, pods, {})


def job_of(pod: PeerObject) -> str:
    """Return the name of a pod's Job."""
    return pod.metadata.labels.get("batch.kubernetes.io/job-name", "")


def jobs_of(namespace: str) -> str:
    """Return the path of the Jobs of a namespace."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def job(name: str, queue: str, pods: int, gpus: int = 0, **options: str) -> dict[str, Any]:
    """Return a suspended Job whose pods request GPUs, or 100 milli-CPUs without GPUs, and end at once if deleted.

    `options` are `priority` (a PriorityClass), `runtime` (24h without it), and `topology` (the preferred level).
    """
    requests = {"limits": {GPU: str(gpus)}} if gpus else {"requests": {"cpu": "100m"}}
    container = {"name": "main", "image": "busybox", "resources": requests}
    spec: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    spec["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    if "priority" in options:
        spec["priorityClassName"] = options["priority"]
    annotations = {"batchyard.dev/runtime": options.get("runtime", "24h")}
    if "topology" in options:
        annotations[_TOPOLOGY] = options["topology"]
    template = {"metadata": {"annotations": annotations}, "spec": spec}
    counts = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
    metadata = {"name": name, "namespace": queue, "labels": {"kueue.x-k8s.io/queue-name": queue}}
    spec = {"suspend": True, "template": template, **counts}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


async def kai_fill(run: ShapeRun, background: int = 0) -> ShapeOutcome:
    """4,000 Jobs of one GPU on 500 nodes, created before the queue is started."""
    await run.create_queues({FILLER: run.all_gpus, BACKGROUND: 0})
    if background:
        await run.hold(BACKGROUND, "Hold")
        await run.submit(BACKGROUND, background, gpus=1)
    jobs = run.all_gpus
    return await run.measure(FILLER, jobs, lambda: run.submit_held(FILLER, jobs, gpus=1))


async def kai_fill_pending(run: ShapeRun) -> ShapeOutcome:
    """The same beside 400 pending Jobs of a queue without quota."""
    return await kai_fill(run, 400 // run.divisor)


async def kai_fill_running(run: ShapeRun) -> ShapeOutcome:
    """4,000 Jobs of one GPU, scheduled while they are created."""
    await run.create_queues({FILLER: run.all_gpus})

    async def start() -> float:
        started_at = time.monotonic()
        await run.submit(FILLER, run.all_gpus, gpus=1)
        return started_at

    return await run.measure(FILLER, run.all_gpus, start)


async def kai_gang(run: ShapeRun) -> ShapeOutcome:
    """One Job of 512 pods with two GPUs each, on 512 nodes."""
    await run.create_queues({FILLER: run.gang_pods * GPUS})
    return await run.measure(FILLER, run.gang_pods, lambda: run.submit_held(FILLER, 1, run.gang_pods, gpus=2))


async def kai_gang_topology(run: ShapeRun) -> ShapeOutcome:
    """The same with a preferred level of a topology of 4 zones, 32 blocks and 256 racks."""
    levels = {"levels": [{"nodeLabel": name} for name, _ in LEVELS]}
    topology = {"apiVersion": KUEUE_API, "kind": "Topology", "metadata": {"name": "tree"}, "spec": levels}
    await run.cluster.create(f"{KUEUE}/topologies", topology)
    await run.create_queues({FILLER: run.gang_pods * GPUS}, topologyName="tree", nodeLabels=POOL)
    rack = LEVELS[-1][0]
    outcome = await run.measure(
        FILLER, run.gang_pods, lambda: run.submit_held(FILLER, 1, run.gang_pods, gpus=2, topology=rack)
    )
    _, body = await run.cluster.client.request("GET", f"{KUEUE}/namespaces/{FILLER}/workloads")
    return outcome._replace(details={"topologyAssignment": b'"topologyAssignment"' in body})


async def reclaim_gang(run: ShapeRun, pods: int, filler_gpus: int, **options: str) -> ShapeOutcome:
    """Measure one Job with 8 GPUs for each pod that reclaims quota from running Jobs of one or 8 GPUs each."""
    await run.create_queues({FILLER: 0, RECLAIMER: run.all_gpus})
    await run.submit_held(FILLER, run.all_gpus // filler_gpus, gpus=filler_gpus)
    await run.watch.all_scheduled(FILLER, run.all_gpus // filler_gpus)

    async def start() -> float:
        started_at = time.monotonic()
        await run.submit(RECLAIMER, 1, pods, gpus=GPUS, **options)
        return started_at

    return await run.measure(RECLAIMER, pods, start)


async def kai_reclaim_250(run: ShapeRun) -> ShapeOutcome:
    """One Job of 250 pods with 8 GPUs each, which needs the nodes of 2,000 of 4,000 Jobs of one GPU."""
    return await reclaim_gang(run, run.nodes // 2, 1, priority="urgent")


async def kai_reclaim_500(run: ShapeRun) -> ShapeOutcome:
    """One Job of 500 pods with 8 GPUs each, which replaces 500 Jobs of 8 GPUs."""
    return await reclaim_gang(run, run.nodes, GPUS)


async def kai_reclaim_one(run: ShapeRun) -> ShapeOutcome:
    """Ten Jobs of one GPU, one after the other, each of which reclaims one GPU; the mean."""
    await run.create_queues({FILLER: 0, RECLAIMER: run.all_gpus})
    await run.fill()
    seconds = []
    for number in range(_SAMPLES):
        started_at = time.monotonic()
        await run.submit(RECLAIMER, 1, gpus=1)
        seconds.append(await run.watch.all_scheduled(RECLAIMER, number + 1) - started_at)
    return ShapeOutcome(sum(seconds) / _SAMPLES, _SAMPLES, _SAMPLES, {"samples": [round(each, 3) for each in seconds]})


async def kai_reclaim_4000(run: ShapeRun) -> ShapeOutcome:
    """4,000 Jobs of one GPU, which reclaim all GPUs from 4,000 others."""
    await run.create_queues({FILLER: 0, RECLAIMER: run.all_gpus})
    await run.fill()
    return await run.measure(RECLAIMER, run.all_gpus, lambda: run.submit_held(RECLAIMER, run.all_gpus, gpus=1))


async def kai_reclaim_gangs(run: ShapeRun) -> ShapeOutcome:
    """50 Jobs of 10 pods with 5 GPUs each, which reclaim 2,500 GPUs from Jobs of one GPU."""
    await run.create_queues({FILLER: 0, RECLAIMER: run.all_gpus})
    await run.fill()
    jobs, gpus = run.nodes // _GANG, GPUS // 2 + 1
    start = partial(run.submit_held, RECLAIMER, jobs, _GANG, gpus=gpus, priority="urgent")
    return await run.measure(RECLAIMER, run.nodes, start)


async def kai_unschedulable(run: ShapeRun) -> ShapeOutcome:
    """A Job of 10 pods with 8 GPUs each, where only 79 GPUs can be reclaimed: the time until the reason is visible."""
    quota = _GANG * GPUS - 1
    await run.create_queues({FILLER: run.all_gpus - quota, RECLAIMER: quota})
    await run.fill()
    seconds, reasons = [], run.watch.reasons
    for _ in range(_SAMPLES):
        started_at = time.monotonic()
        (name,) = await run.submit(RECLAIMER, 1, _GANG, gpus=GPUS)
        workload = f"job-{name}-"
        visible = await run.watch.wait_until(lambda: any(each.startswith(workload) for each in reasons), _WAIT_MAX)  # noqa: B023
        assert visible, f"no reason for Job {name}"
        seconds.append(time.monotonic() - started_at)
        await run.delete_jobs(RECLAIMER, {name})
    message = reasons[next(each for each in reasons if each.startswith(workload))]
    details = {"samples": [round(each, 3) for each in seconds], "message": message}
    return ShapeOutcome(sum(seconds) / _SAMPLES, _GANG, 0, details)


async def kai_consolidation(run: ShapeRun) -> ShapeOutcome:
    """41 Jobs of 10 pods with 6 GPUs each, where each node has 5 free GPUs and three Jobs of one GPU."""
    await run.create_queues({FILLER: run.all_gpus, RECLAIMER: run.all_gpus})
    await run.fill()
    await run.delete_from_all_nodes(FILLER, GPUS // 2 + 1)
    gpus = GPUS // 2 + 2
    jobs = run.nodes * (GPUS // 2 + 1) // (gpus * _GANG)
    start = partial(run.submit_held, RECLAIMER, jobs, _GANG, gpus=gpus, priority="urgent")
    return await run.measure(RECLAIMER, jobs * _GANG, start)


async def kai_nccl(run: ShapeRun) -> ShapeOutcome:
    """900 Jobs of 1 to 256 pods with 8 GPUs each, which run for 20 to 40 s: the time until all have ended."""
    await run.create_queues({FILLER: run.all_gpus})
    sizes = [2**power for power in range(9)]
    started_at = time.monotonic()
    for size in sizes:
        for number in range(90):
            await run.submit(FILLER, 1, size, gpus=GPUS, runtime=f"{20 + (7 * number + size) % 21}s")
    pods = 90 * sum(sizes)
    limit = 4 * 3600.0
    ended = await run.watch.wait_until(lambda: len(run.watch.finished) >= 90 * len(sizes), limit)
    seconds = time.monotonic() - started_at
    return ShapeOutcome(seconds if ended else None, pods, pods, {"finished Jobs": len(run.watch.finished)})


async def yunikorn(run: ShapeRun, applications: int) -> ShapeOutcome:
    """Measure 5,000 pods in some Jobs, created one second apart, from the first create to the last pod with a node."""
    await run.create_queues({FILLER: 100_000}, "cpu")
    pods = _BATCH_PODS // run.divisor

    async def start() -> float:
        started_at = time.monotonic()
        for number in range(applications):
            if number:
                await pause(max(0.0, started_at + number - time.monotonic()))
            await run.submit(FILLER, 1, pods // applications)
        return started_at

    return await run.measure(FILLER, pods, start)
