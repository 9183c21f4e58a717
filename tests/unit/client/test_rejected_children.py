"""Jobs and Services of a JobSet that the API rejects: the JobSet gets an event."""

import pytest

import make
from batchyard.api import scheme
from batchyard.api.errors import ApiError, Conflict, FieldError, InvalidObject, TemporarilyForbidden
from batchyard.api.meta import Obj, with_path
from batchyard.client.local import AdmissionHooks, LocalClient
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import Reader
from batchyard.interfaces.controller import EventRecord
from batchyard.jobs.jobset.controller import JobSetController
from batchyard.store.memory import Store
from stage import Stage
from unit.jobs.jobset.test_job_sets import KEY, make_jobset

ONE, OTHER = FieldError("spec.a", "no"), FieldError("spec.b", "never")
QUOTA = 'jobs.batch "js-driver-0" is forbidden: exceeded quota: few'


class RejectingStage:
    """A stage that rejects new objects of a kind while it has an error."""

    def __init__(self, kind: str, error: ApiError | None) -> None:
        self.error = error
        self.stage = Stage()
        self.stage.client = LocalClient(Store(), self.stage.kernel, admission=AdmissionHooks({kind: self._prepare}))
        self.stage.runner = Runner(self.stage.kernel, self.stage.client, [JobSetController()], self._record)
        self.stage.put(make_jobset())

    def _prepare(self, obj: Obj, reader: Reader) -> Obj:
        if self.error is not None:
            raise self.error
        return obj

    def _record(self, now: int, controller: str, event: EventRecord) -> None:
        self.stage.events.append(event)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TemporarilyForbidden(QUOTA), QUOTA),
        (InvalidObject([ONE]), 'Job.batch "js-driver-0" is invalid: spec.a: no'),
        (InvalidObject([ONE, OTHER]), 'Job.batch "js-driver-0" is invalid: [spec.a: no, spec.b: never]'),
    ],
)
def test_rejected_job_is_reported_as_event(error: ApiError, why: str) -> None:
    refusing = RejectingStage(scheme.JOB, error)
    message = f'job "js-driver-0" creation failed with error: {why}'
    assert set(refusing.stage.events) == {EventRecord(KEY, "Warning", "JobCreationFailed", message)}
    assert "status" not in refusing.stage.get(scheme.JOB_SET, "js"), "it is no further than its Jobs"
    refusing.error = None
    refusing.stage.run(60)
    assert len(refusing.stage.client.list(scheme.JOB)) == 3


def test_rejected_service_is_reported_as_event() -> None:
    stage = RejectingStage(scheme.SERVICE, InvalidObject([ONE])).stage
    (reported,) = set(stage.events)
    assert (reported.reason, reported.message) == (
        "HeadlessServiceCreationFailed",
        'Service "js" is invalid: spec.a: no',
    )


def test_conflict_on_create_reports_no_event() -> None:
    assert not RejectingStage(scheme.JOB, Conflict("it is there")).stage.events


def test_many_jobs_are_created_in_batches() -> None:
    stage = Stage(JobSetController())
    stage.put(make_jobset([make.replicated_job("worker", replicas=1200)]))
    assert len(stage.client.list(scheme.JOB)) == 1200


def test_rejected_job_set_with_many_jobs_builds_few_of_them() -> None:
    refusing = RejectingStage(scheme.JOB, TemporarilyForbidden(QUOTA))
    refusing.stage.put(
        with_path(make_jobset([make.replicated_job("w", replicas=2_000_000_000)]), ("metadata", "name"), "many")
    )
    assert [event for event in refusing.stage.events if event.regarding.name == "many"]
