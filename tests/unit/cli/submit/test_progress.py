"""Progress reports and the exit code of a Job, derived from the API."""

from typing import Any

import pytest

from batchyard.cli.submit.progress import JobProgress

AT = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:00:32Z"


def condition(kind: str, *, status: bool = True, reason: str = "R", message: str = "m", at: str = AT) -> dict[str, Any]:
    reported = "True" if status else "False"
    return {"type": kind, "status": reported, "reason": reason, "message": message, "lastTransitionTime": at}


def workload(*conditions: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {"status": {"conditions": list(conditions), **status}}


ADMITTED = workload(
    condition("QuotaReserved"),
    condition("Admitted"),
    admission={"clusterQueue": "cq", "podSetAssignments": [{"flavors": {"cpu": "spot", "memory": "spot"}}]},
)


def pod(name: str, **state: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"containerStatuses": [{"name": "main", "state": state}]}}


def failed_pod(name: str, code: int) -> dict[str, Any]:
    return pod(name, terminated={"exitCode": code, "reason": "Error", "startedAt": AT})


def job(*conditions: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {"status": {"conditions": list(conditions), **status}}


def test_each_change_is_reported_once() -> None:
    story = JobProgress()
    waits = workload(condition("QuotaReserved", status=False, message="no room"))
    assert [reported.line for reported in story.process_workload(waits)] == ["waits: no room"]
    assert list(story.process_workload(waits)) == []
    assert [reported.line for reported in story.process_queue_position(1, 3, "jobs")] == ["is 2 of 3 in queue jobs"]
    assert list(story.process_queue_position(1, 3, "jobs")) == []
    assert [reported.line for reported in story.process_workload(ADMITTED)] == ["admitted by cq, on spot"]
    assert list(story.process_workload(ADMITTED)) == []
    assert not story.is_pending


def test_preempted_job_waits_and_reports_next_admission() -> None:
    story = JobProgress()
    list(story.process_workload(ADMITTED))
    evicted = condition("Evicted", reason="Preempted", message="to make room", at=LATER)
    stopping = workload(evicted, condition("Admitted"), condition("QuotaReserved"))
    assert [reported.line for reported in story.process_workload(stopping)] == [
        "stopped (Preempted): to make room; it waits again"
    ]
    assert story.is_pending
    for why, lines in {"to make room": [], "no room": ["waits: no room"]}.items():
        waiting = workload(evicted, condition("QuotaReserved", status=False, message=why))
        assert [reported.line for reported in story.process_workload(waiting)] == lines
    assert [each.event for each in story.process_workload(ADMITTED)] == ["Admitted"]


def test_running_pod_is_reported_after_admission() -> None:
    story = JobProgress()
    list(story.process_workload(workload()))
    assert list(story.process_pod(pod("p", running={"startedAt": AT}))) == []
    assert [reported.event for reported in story.process_workload(ADMITTED)] == ["Admitted", "PodRunning"]


def test_pending_admission_check_is_reported() -> None:
    checks = [{"name": "dws", "state": "Pending", "message": "asked for capacity"}, {"name": "b", "state": "Ready"}]
    (reported,) = JobProgress().process_workload(workload(condition("QuotaReserved"), admissionChecks=checks))
    assert reported.line == "waits: has quota, and waits for dws: asked for capacity"


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (pod("p", running={"startedAt": AT}), "pod p runs"),
        (failed_pod("p", 3), "pod p failed with exit code 3"),
        (
            pod("p", terminated={"exitCode": 137, "reason": "OOMKilled", "startedAt": AT}),
            "pod p failed with exit code 137 (OOMKilled)",
        ),
        (
            pod("p", terminated={"exitCode": 128, "reason": "StartError", "message": "no such file"}),
            "pod p failed with exit code 128 (StartError: no such file)",
        ),
        (
            pod("p", waiting={"reason": "ErrImagePull", "message": "no such image"}),
            "pod p waits: ErrImagePull: no such image",
        ),
        (
            {
                "metadata": {"name": "p"},
                "status": {"conditions": [condition("PodScheduled", status=False, message="0/2 nodes are available")]},
            },
            "pod p waits: 0/2 nodes are available",
        ),
    ],
)
def test_pod_state_is_reported(seen: dict[str, Any], line: str) -> None:
    assert [reported.line for reported in JobProgress().process_pod(seen)] == [line]


def test_pod_warning_is_reported_once() -> None:
    story = JobProgress()
    warned = ("p", "FailedMount", "there is no such folder")
    assert [reported.line for reported in story.process_warning(*warned)] == [
        "pod p waits: FailedMount: there is no such folder"
    ]
    assert [*story.process_warning(*warned), *story.process_warning("p", "FailedScheduling", "no room")] == []


def test_success_is_reported_for_job_instead_of_pods() -> None:
    story = JobProgress()
    assert list(story.process_pod(pod("p", terminated={"exitCode": 0, "startedAt": AT}))) == []
    (reported,) = story.process_job(job(condition("Complete"), startTime=AT, completionTime=LATER))
    assert (reported.line, story.exit_code) == ("complete in 32 s", 0)


def test_exit_code_is_that_of_last_failed_pod() -> None:
    story = JobProgress()
    list(story.process_pod(failed_pod("a", 3)))
    failed = job(condition("Failed", reason="BackoffLimitExceeded", message="too many"))
    reported = list(story.process_job(failed, [failed_pod("a", 3), failed_pod("b", 4)]))
    assert reported[-1].line == "failed (BackoffLimitExceeded): too many; exit code 4"
    assert story.exit_code == 4


@pytest.mark.parametrize("reason", ["DeadlineExceeded", "BackoffLimitExceeded"])
def test_exit_code_is_one_without_container_exit_code(reason: str) -> None:
    story = JobProgress()
    pods = [failed_pod("a", 137)] if reason == "DeadlineExceeded" else []
    list(story.process_job(job(condition("Failed", reason=reason)), pods))
    assert story.exit_code == 1


def test_deleted_job_counts_as_failed() -> None:
    story = JobProgress()
    assert [reported.line for reported in story.process_deletion()] == ["the Job was deleted"]
    assert story.exit_code == 1
