"""Rejected pods of Jobs: their events and retries."""

import make
from batchyard.api.errors import Forbidden, NamespaceTerminating, TemporarilyForbidden
from batchyard.api.meta import Obj
from unit.client.job_pods_make import JobStage


class AdmissionStub:
    """Admits a limited number of pods."""

    def __init__(self, error: type[Forbidden], allowed: int = 0) -> None:
        self.error = error
        self.allowed = allowed
        self.calls = 0

    def __call__(self, pod: Obj) -> None:
        self.calls += 1
        if not self.allowed:
            raise self.error("no")
        self.allowed -= 1


def job_stage(admission: AdmissionStub, parallelism: int = 1) -> JobStage:
    return JobStage(
        make.job(queue=None, suspend=False, parallelism=parallelism, completions=parallelism), admit=admission
    )


def test_job_reports_each_created_pod_and_rejection_once() -> None:
    stage = job_stage(AdmissionStub(TemporarilyForbidden, allowed=2), parallelism=5)
    reported = [(event.reason, event.message) for event in stage.events]
    assert [reason for reason, _ in reported[:3]] == ["SuccessfulCreate", "SuccessfulCreate", "FailedCreate"]
    assert reported[2][1] == "Error creating: no"
    assert len(stage.pods()) == 2


def test_transient_rejection_is_retried_with_backoff() -> None:
    admission = AdmissionStub(TemporarilyForbidden)
    stage = job_stage(admission)
    tries = []
    for second in range(9):
        stage.run(second)
        tries.append(admission.calls)
    assert tries[-1] > tries[0]
    assert len(dict.fromkeys(tries)) < 6
    admission.allowed = 1
    stage.run(100)
    assert len(stage.pods()) == 1


def test_forbidden_pod_is_not_retried_after_time() -> None:
    admission = AdmissionStub(Forbidden)
    stage = job_stage(admission)
    calls = admission.calls
    stage.run(100)
    assert admission.calls == calls


def test_terminating_namespace_reports_no_event() -> None:
    assert job_stage(AdmissionStub(NamespaceTerminating)).reasons() == []


def test_large_job_creates_pods_in_batches() -> None:
    stage = job_stage(AdmissionStub(TemporarilyForbidden, allowed=1200), parallelism=1200)
    assert (len(stage.pods()), stage.status["active"]) == (1200, 1200)


def test_large_job_limits_attempts_while_pods_are_rejected() -> None:
    admission = AdmissionStub(TemporarilyForbidden)
    stage = job_stage(admission, parallelism=2_000_000_000)
    assert admission.calls <= 500
    stage.run(100)
    assert admission.calls <= 500 * 20
