"""Jobs and JobSets of two teams that borrow and preempt while their platform is killed repeatedly.

They reach the same final states as without kills. No revision of the journal exceeds quota, or admits a Workload again
without an eviction.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.server.platform.data_dir import JOURNAL_FILE
from batchyard.store.journal_file import read_journal
from e2e_platform.kill_rounds import PlainHttpClient, ask
from e2e_platform.platform_process import UpProcess
from fuzz.seeded_random import SeededRandom

KUEUE: Final = "/apis/kueue.x-k8s.io/v1beta2"
JOBS: Final = "/apis/batch/v1/namespaces/default/jobs"
JOB_SETS: Final = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
WORKLOADS: Final = f"{KUEUE}/namespaces/default/workloads"
TEAMS: Final = ("red", "blue")
QUOTA: Final = 4  # CPUs of each team
SPEED: Final = "300x"
_WORKLOAD: Final = "Workload.kueue.x-k8s.io"


def end_of(folder: Path, kills: int, *options: str) -> dict[str, str]:
    """The final states of all submitted objects after a number of kills of the platform."""
    dice = SeededRandom("converging", kills, options)
    with ExitStack() as started:
        running = started.enter_context(UpProcess(folder, "--insecure-loopback", "--speed", SPEED, *options))
        for path, obj in submitted():
            code, answer = ask(running.url, "POST", path, obj)
            assert code == 201, answer
        for _ in range(kills):
            _watch_changes(running.url, 1 + dice.below(40))
            running.kill()
            running = started.enter_context(UpProcess(folder, "--insecure-loopback", "--speed", SPEED, *options))
        _wait_for_all(running.url)
        return dict(_ends(running.url))


def faults_of(folder: Path) -> list[str]:
    """The faults in the journal."""
    changes = read_journal(folder / JOURNAL_FILE).store.changes
    numbers = [change.revision for change in changes]
    faults = [] if numbers == list(range(numbers[0], numbers[0] + len(numbers))) else ["revisions have a gap"]
    admitted: dict[str, dict[str, Any]] = {}
    for change in changes:
        if change.key.kind == _WORKLOAD:
            faults += _faults_of_admission(change, admitted)
    return faults


def submitted() -> Iterator[tuple[str, dict[str, Any]]]:
    """Two queues in a cohort, low Jobs, JobSets, and then high Jobs."""
    yield f"{KUEUE}/resourceflavors", {"metadata": {"name": "any"}}
    for name, value in (("low", 1), ("high", 100)):
        yield f"{KUEUE}/workloadpriorityclasses", {"metadata": {"name": name}, "value": value}
    preemption = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
    for team in TEAMS:
        resources = [{"name": "cpu", "nominalQuota": QUOTA}]
        group = {"coveredResources": ["cpu"], "flavors": [{"name": "any", "resources": resources}]}
        spec = {"cohortName": "all", "namespaceSelector": {}, "resourceGroups": [group], "preemption": preemption}
        yield f"{KUEUE}/clusterqueues", {"metadata": {"name": team}, "spec": spec}
        queue = {"metadata": {"name": team}, "spec": {"clusterQueue": team}}
        yield f"{KUEUE}/namespaces/default/localqueues", queue
    for number in range(6):
        yield JOBS, _job(f"red-low-{number}", "red", "low", 2)
    for number in range(3):
        yield JOB_SETS, _job_set(f"red-set-{number}", "red", "low")
    for number in range(4):
        yield JOBS, _job(f"blue-high-{number}", "blue", "high", 1 + number)


def _job(name: str, queue: str, priority: str, pods: int) -> dict[str, Any]:
    spec = {"parallelism": pods, "completions": pods, "suspend": True, "template": _template()}
    return {"metadata": _metadata(name, queue, priority), "spec": spec}


def _job_set(name: str, queue: str, priority: str) -> dict[str, Any]:
    job = {"spec": {"parallelism": 1, "completions": 1, "template": _template()}}
    replicated = [{"name": part, "replicas": 1, "template": job} for part in ("a", "b")]
    return {"metadata": _metadata(name, queue, priority), "spec": {"suspend": True, "replicatedJobs": replicated}}


def _metadata(name: str, queue: str, priority: str) -> dict[str, Any]:
    labels = {"kueue.x-k8s.io/queue-name": queue, "kueue.x-k8s.io/priority-class": priority}
    return {"name": name, "labels": labels, "annotations": {"batchyard.dev/runtime": "20s"}}


def _template() -> dict[str, Any]:
    container = {"name": "main", "image": "python:3.12", "resources": {"requests": {"cpu": "1"}}}
    return {"spec": {"restartPolicy": "Never", "containers": [container]}}


def _watch_changes(url: str, count: int) -> None:
    """Watch until a number of changes of Workloads, or until no more changes arrive for a while."""
    with PlainHttpClient(url) as client:
        for number, _ in enumerate(client.lines(f"{WORKLOADS}?watch=1&timeoutSeconds=2")):
            if number >= count:
                return


def _wait_for_all(url: str) -> None:
    """Watch until all Workloads are finished."""
    left: dict[str, bool] = {}
    with PlainHttpClient(url) as client:
        for event in client.lines(f"{WORKLOADS}?watch=1"):
            workload = event["object"]
            left[workload["metadata"]["name"]] = not _holds(workload, "Finished")
            if len(left) == 13 and not any(left.values()):
                return


def _ends(url: str) -> Iterator[tuple[str, str]]:
    for path in (JOBS, JOB_SETS):
        for obj in ask(url, "GET", path)[1]["items"]:
            ended = [c["type"] for c in obj["status"].get("conditions", ()) if c["status"] == "True"]
            yield obj["metadata"]["name"], "Complete" if {"Complete", "Completed"} & set(ended) else str(ended)
    for workload in ask(url, "GET", WORKLOADS)[1]["items"]:
        yield workload["metadata"]["name"], "Finished" if _holds(workload, "Finished") else "under way"


def _faults_of_admission(change: WatchEvent, admitted: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Record a change of a Workload; yield its faults."""
    name, workload = change.key.name, change.obj
    holds = _holds(workload, "QuotaReserved") and not _holds(workload, "Finished")
    before = admitted.pop(name, None)
    if change.type is EventType.DELETED or not holds:
        return
    admitted[name] = workload["status"]["admission"]
    if before is not None and before["clusterQueue"] != admitted[name]["clusterQueue"]:
        yield f"revision {change.revision}: {name} was admitted anew without an end of its admission"
    used = sum(
        int(assignment["resourceUsage"]["cpu"])
        for admission in admitted.values()
        for assignment in admission["podSetAssignments"]
    )
    if used > QUOTA * len(TEAMS):
        yield f"revision {change.revision}: {used} CPUs are admitted, and {QUOTA * len(TEAMS)} are there"


def _holds(obj: Mapping[str, Any], condition: str) -> bool:
    conditions = obj.get("status", {}).get("conditions", ())
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)
