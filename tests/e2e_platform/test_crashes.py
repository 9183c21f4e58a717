"""Acknowledged writes survive a kill of the platform, and running work continues."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from e2e_platform import convergence
from e2e_platform.kill_rounds import PlainHttpClient, RoundResponses, ask, check_final_state, kill_round
from e2e_platform.platform_process import UpProcess

QUEUE = "/apis/kueue.x-k8s.io/v1beta1"
WORKLOADS = f"{QUEUE}/namespaces/default/workloads"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
COUNT = 12
OPTIONS = ("--insecure-loopback", "--speed", "60x")


def test_acknowledged_writes_survive_kills_and_are_watched_once(tmp_path: Path) -> None:
    answers = RoundResponses()
    for number in range(3):
        kill_round(tmp_path, number, answers)
    check_final_state(tmp_path, answers)
    assert answers.faults == []
    assert len(answers.acknowledged) > 300


def test_jobs_reach_same_result_with_and_without_kills(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    assert end_of(tmp_path / "killed", [1, 5, 9]) == end_of(tmp_path / "calm", [])


def test_preempting_teams_reach_same_result_within_quota_across_kills(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    calm = convergence.end_of(tmp_path / "calm", 0)
    assert sorted(set(calm.values())) == ["Complete", "Finished"]
    assert list(convergence.end_of(tmp_path / "killed", 2).values()) == list(calm.values())
    assert convergence.faults_of(tmp_path / "killed") == []


def end_of(folder: Path, kills: Sequence[int]) -> dict[str, Any]:
    """The final state of Jobs in a queue for two, with a kill of the platform after each count in `kills`."""
    with ExitStack() as started:
        running = started.enter_context(UpProcess(folder, *OPTIONS))
        for path, obj in submitted():
            code, answer = ask(running.url, "POST", path, obj)
            assert code == 201, answer
        for complete in kills:
            wait_for(running.url, complete)
            running.kill()
            running = started.enter_context(UpProcess(folder, *OPTIONS))
        wait_for(running.url, COUNT)
        wait_for_quota(running.url)
        jobs = ask(running.url, "GET", JOBS)[1]["items"]
        pods = ask(running.url, "GET", "/api/v1/namespaces/default/pods")[1]["items"]
        workloads = ask(running.url, "GET", WORKLOADS)[1]["items"]
    finished = [
        any(c["type"] == "Finished" and c["status"] == "True" for c in wl["status"]["conditions"]) for wl in workloads
    ]
    succeeded = {job["metadata"]["name"]: job["status"].get("succeeded") for job in jobs}
    return {"jobs": succeeded, "finished": finished, "pods": sorted(pod["status"]["phase"] for pod in pods)}


def submitted() -> Iterator[tuple[str, dict[str, Any]]]:
    """A queue of two CPUs, and Jobs of one."""
    resources = [{"name": "cpu", "nominalQuota": 2}]
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "any", "resources": resources}]}
    yield f"{QUEUE}/resourceflavors", {"metadata": {"name": "any"}}
    yield (
        f"{QUEUE}/clusterqueues",
        {"metadata": {"name": "all"}, "spec": {"namespaceSelector": {}, "resourceGroups": [group]}},
    )
    yield f"{QUEUE}/namespaces/default/localqueues", {"metadata": {"name": "jobs"}, "spec": {"clusterQueue": "all"}}
    container = {"name": "main", "image": "python:3.12", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    for number in range(COUNT):
        metadata = {
            "name": f"job-{number}",
            "labels": {"kueue.x-k8s.io/queue-name": "jobs"},
            "annotations": {"batchyard.dev/runtime": f"{10 + number}s"},
        }
        yield JOBS, {"metadata": metadata, "spec": {"suspend": True, "template": template}}


def wait_for(url: str, complete: int) -> None:
    """Watch until a number of Jobs is complete."""
    done = set()
    with PlainHttpClient(url) as client:
        for event in client.lines(f"{JOBS}?watch=1"):
            if event["object"].get("status", {}).get("completionTime"):
                done.add(event["object"]["metadata"]["name"])
            if len(done) >= complete:
                return


def wait_for_quota(url: str) -> None:
    """Watch until all quota is released."""
    with PlainHttpClient(url) as client:
        for event in client.lines(f"{QUEUE}/clusterqueues?watch=1"):
            status = event["object"].get("status", {})
            if "pendingWorkloads" in status and not status["pendingWorkloads"] + status.get("admittedWorkloads", 0):
                return
