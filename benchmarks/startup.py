"""Measures the start of an operator and of a platform that have many Workloads: time, CPU seconds and memory.

    PYTHONPATH=tests python benchmarks/startup.py [--workloads 50000] [--queues 1000] [--kueue KUEUE]

The platform's Workloads are written into its journal, and `batchyard up` starts from it. With --kueue, a checkout of
Kueue for its CustomResourceDefinitions, the script instead starts a Kubernetes API server with etcd
(KUBEBUILDER_ASSETS), creates the Workloads over HTTP, and starts `batchyard operator`. All Workloads are pending, and
have the status that a scheduler wrote before. Prints the seconds until the program is ready (the controllers of the
operator run, `up` returns), its CPU seconds until then, and how much more memory each Workload takes than the same
start without Workloads.
"""

import argparse
import asyncio
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from batchyard.api.meta import key_of
from batchyard.api.scheme import find_kind
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.store.journal import RevisionJournal
from e2e_kubernetes.kubernetes import Kubernetes
from e2e_platform.operator_process import free_port

API: Final = "kueue.x-k8s.io/v1beta2"
CREATED: Final = "2026-01-01T00:00:00Z"
CONNECTIONS: Final = 32
ROWS_PER_TRANSACTION: Final = 1000
#: The line that the operator prints when its lists are complete and its controllers run.
RUNNING: Final = "this replica runs "


class ProgramStart(NamedTuple):
    """The seconds until a program was ready, its CPU seconds until then, and its resident memory in bytes."""

    seconds: float
    cpu_seconds: float
    memory: int


def queue_objects(queues: int) -> Iterator[dict[str, Any]]:
    """Yield a flavor, and ClusterQueues without quota, each with a LocalQueue in its own namespace."""
    yield {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "default"}}
    resources = [{"name": "cpu", "nominalQuota": "0"}]
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "default", "resources": resources}]}]
    for number in range(queues):
        spec = {"namespaceSelector": {}, "cohortName": f"cohort-{number // 100}", "resourceGroups": groups}
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"team-{number}"}}
        yield {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": f"queue-{number}"}, "spec": spec}
        metadata = {"name": "queue", "namespace": f"team-{number}"}
        local_spec = {"clusterQueue": f"queue-{number}"}
        yield {"apiVersion": API, "kind": "LocalQueue", "metadata": metadata, "spec": local_spec}


def workload(number: int, queues: int) -> dict[str, Any]:
    """Return a pending Workload with the status that the scheduler writes first."""
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": str(1 + number % 8)}}}
    template = {"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    pod_sets = [{"name": "main", "count": 1, "template": template}]
    condition = {"status": "False", "observedGeneration": 1, "lastTransitionTime": CREATED}
    pending = {"reason": "PendingEvaluation", "message": "Workload is pending evaluation in the scheduling queue"}
    unreserved = {"reason": "NoReservation", "message": "The workload has no reservation"}
    conditions = [{"type": "QuotaReserved", **condition, **pending}, {"type": "Admitted", **condition, **unreserved}]
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {"name": f"job-{number}", "namespace": f"team-{number % queues}"},
        "spec": {"queueName": "queue", "priority": 0, "active": True, "podSets": pod_sets},
        "status": {"conditions": conditions},
    }


def measure_platform(workloads: int, queues: int) -> ProgramStart:
    """Write the objects into the journal of a new platform, start it from there, and stop it."""
    with tempfile.TemporaryDirectory() as name:
        run_batchyard("up", "--detach", "--data-dir", name)
        run_batchyard("down", "--data-dir", name)
        write_journal(Path(name, "journal.db"), workloads, queues)
        start = time.perf_counter()
        run_batchyard("up", "--detach", "--data-dir", name)
        seconds = time.perf_counter() - start
        try:
            pid = msgspec.json.decode(run_batchyard("status", "--data-dir", name, "--output", "json"))["pid"]
            return ProgramStart(seconds, *used_resources(pid))
        finally:
            run_batchyard("down", "--data-dir", name)


def write_journal(path: Path, workloads: int, queues: int) -> None:
    """Append the creation of all objects to a journal."""
    journal = RevisionJournal(path)
    revision, changes = journal.recover().revision, list[WatchEvent]()
    objs = [*queue_objects(queues), *(workload(number, queues) for number in range(workloads))]
    for number, obj in enumerate(objs, 1):
        uid = f"00000000-0000-4000-8000-{number:012d}"
        server = {"uid": uid, "creationTimestamp": CREATED, "generation": 1, "resourceVersion": str(revision + number)}
        stored = {**obj, "metadata": {**obj["metadata"], **server}}
        changes.append(WatchEvent(EventType.ADDED, key_of(obj), stored, None, revision + number))
    for first in range(0, len(changes), ROWS_PER_TRANSACTION):
        journal.append(changes[first : first + ROWS_PER_TRANSACTION])
    journal.close()


def measure_operator(cluster: Kubernetes) -> ProgramStart:
    """Start an operator against a Kubernetes API server, wait until its controllers run, and stop it."""
    command = [sys.executable, "-m", "batchyard", "operator", "--kubeconfig", str(cluster.kubeconfig)]
    command += ["--controllers", "admission", "--no-leader-elect", "--beside-upstream", "--port", str(free_port())]
    start = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            next(line for line in process.stderr if RUNNING in line)
            return ProgramStart(time.perf_counter() - start, *used_resources(process.pid))
        finally:
            process.kill()


async def create_objects(cluster: Kubernetes, objs: list[dict[str, Any]]) -> None:
    """Create objects, and write their statuses, over CONNECTIONS connections."""
    context = ssl.create_default_context(cafile=str(cluster.authority.certificate_file))
    folder = cluster.kubeconfig.parent
    context.load_cert_chain(folder / "admin.crt", folder / "admin.key")
    objs_left = iter(objs)

    async def create_next(session: aiohttp.ClientSession) -> None:
        for obj in objs_left:
            kind, metadata = find_kind(obj["apiVersion"], obj["kind"]), obj["metadata"]
            assert kind is not None
            prefix = f"/apis/{obj['apiVersion']}" if "/" in obj["apiVersion"] else "/api/v1"
            namespace = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
            url = f"{cluster.url}{prefix}{namespace}/{kind.plural}"
            async with session.post(url, json=obj) as response:
                created = await response.json()
                assert response.status == 201, created
            if "status" in obj:
                status_url, new = f"{url}/{metadata['name']}/status", created | {"status": obj["status"]}
                async with session.put(status_url, json=new) as response:
                    assert response.status == 200, await response.text()

    connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(create_next(session) for _ in range(CONNECTIONS)))


def used_resources(pid: int) -> tuple[float, int]:
    """Return the CPU seconds and the resident memory in bytes of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return (int(fields[11]) + int(fields[12])) / 100, int(status.partition("VmRSS:")[2].split()[0]) * 1024


def run_batchyard(*arguments: str) -> bytes:
    """Run a batchyard command; return its output."""
    return subprocess.run([sys.executable, "-m", "batchyard", *arguments], check=True, capture_output=True).stdout


def print_start(program: str, workloads: int, empty: ProgramStart, full: ProgramStart) -> None:
    """Print the figures of a program."""
    per_workload = (full.memory - empty.memory) / workloads
    print(
        f"{program} with {workloads} Workloads: ready after {full.seconds:.1f} s ({empty.seconds:.1f} s without), "
        f"{full.cpu_seconds:.1f} CPU-s ({empty.cpu_seconds:.1f}), {full.memory >> 20} MiB, "
        f"{per_workload:.0f} bytes per Workload",
        flush=True,
    )


def main() -> None:
    """Run all measurements, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=50_000)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--kueue", type=Path)
    options = parser.parse_args()
    workloads, queues = options.workloads, options.queues
    if options.kueue is None:
        print_start("up", workloads, measure_platform(0, queues), measure_platform(workloads, queues))
        return
    with tempfile.TemporaryDirectory() as name, Kubernetes(Path(name)) as cluster:
        cluster.kubectl("create", "--filename", str(options.kueue / "config/components/crd/bases"))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
        Event().wait(2)
        objs = list(queue_objects(queues))
        for kind in ("Namespace", "ResourceFlavor", "ClusterQueue", "LocalQueue"):
            asyncio.run(create_objects(cluster, [obj for obj in objs if obj["kind"] == kind]))
        empty = measure_operator(cluster)
        asyncio.run(create_objects(cluster, [workload(number, queues) for number in range(workloads)]))
        print_start("operator", workloads, empty, measure_operator(cluster))


if __name__ == "__main__":
    main()
