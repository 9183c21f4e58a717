"""Each pod is counted exactly once, even if the Job controller is interrupted at any write."""

from collections.abc import Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, annotation
from batchyard.api.well_known import COMPLETION_INDEX
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.jobs.job.controller import JobPodController
from batchyard.jobs.job.spec import is_finished
from unit.client.job_pods_make import JobStage
from unit.jobs.job.job_make import indexed, job, per_index

MANY = 2**31 - 1
JOBS = st.sampled_from(
    [
        job(parallelism=2, completions=3, backoffLimit=MANY),
        job(parallelism=3, completions=3, backoffLimit=2),
        job(parallelism=2, completions=None, backoffLimit=MANY),
        job(parallelism=2, completions=3, backoffLimit=MANY, podReplacementPolicy="Failed"),
        indexed(backoffLimit=3),
        indexed(parallelism=2, completions=4, backoffLimit=MANY),
        indexed(backoffLimit=MANY, successPolicy={"rules": [{"succeededCount": 2}]}),
        per_index(1),
        per_index(0, maxFailedIndexes=1),
    ]
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["Succeeded", "Failed", "deleted", "bound", "stopped", "suspended"]), st.integers(0, 2)),
    max_size=12,
)
CUTS = st.lists(st.integers(0, 6), max_size=40)


class InterruptedJobController:
    """The Job controller; only the first writes of a result are applied, then it restarts."""

    name = JobPodController.name
    rank = JobPodController.rank
    kinds = JobPodController.kinds

    def __init__(self, cuts: Sequence[int]) -> None:
        self.inner = JobPodController()
        self.cuts = iter(cuts)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        return self.inner.keys_for(event, now)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        outcome = self.inner.reconcile(key, reader, now)
        cut = next(self.cuts, None) if outcome.writes else None
        if cut is None or cut >= len(outcome.writes):
            return outcome
        self.inner = JobPodController()
        return ReconcileResult(outcome.writes[:cut], requeue_at=now)


class PodResults:
    """The results of tracked pods, computed from watch events only."""

    def __init__(self) -> None:
        self.succeeded: list[str] = []
        self.failed = 0

    def watch(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            before = event.obj if event.type is EventType.DELETED else event.old
            if event.key.kind != scheme.POD or before is None or not before["metadata"].get("finalizers"):
                continue
            if event.type is EventType.DELETED or not event.obj["metadata"].get("finalizers"):
                self._note(event.obj)

    def _note(self, pod: Obj) -> None:
        phase = pod.get("status", {}).get("phase")
        if phase == "Succeeded":
            self.succeeded.append(annotation(pod, COMPLETION_INDEX) or pod["metadata"]["uid"])
        elif phase == "Failed" or "deletionTimestamp" in pod["metadata"]:
            self.failed += 1


def apply_step(stage: JobStage, step: str, number: int) -> None:
    """Apply a step to one pod or to the whole stage."""
    pods = [pod for pod in stage.pods() if "deletionTimestamp" not in pod["metadata"]]
    pod = pods[number % len(pods)] if pods else None
    if step == "suspended":
        stage.change(suspend=number == 0)
    elif step == "stopped":
        stage.stop()
        stage.pass_time(7)
    elif pod is not None and step == "deleted":
        stage.delete(scheme.POD, pod["metadata"]["name"])
    elif pod is not None and step == "bound":
        stage.bind(pod)
    elif pod is not None:
        stage.become(step, pod)


def finish(stage: JobStage) -> None:
    """Set all pods to Succeeded until the Job is finished."""
    stage.change(suspend=False)
    for _ in range(20):
        stage.stop()
        stage.become("Succeeded", *(pod for pod in stage.pods() if "deletionTimestamp" not in pod["metadata"]))
        stage.pass_time(600)


@settings(max_examples=200, deadline=None)
@given(JOBS, STEPS, CUTS)
def test_each_pod_is_counted_exactly_once_across_restarts(
    job: Obj, steps: list[tuple[str, int]], cuts: list[int]
) -> None:
    ends = PodResults()
    stage = JobStage(job, InterruptedJobController(cuts), watch=ends.watch)
    for step, number in steps:
        apply_step(stage, step, number)
    finish(stage)
    assert is_finished(stage.job)
    assert stage.status.get("failed", 0) == ends.failed
    succeeded = ends.succeeded if job["spec"].get("completionMode") is None else set(ends.succeeded)
    assert stage.status.get("succeeded", 0) == len(succeeded)
    assert (stage.status["uncountedTerminatedPods"], stage.tracked()) == ({}, 0)
    assert "active" not in stage.status
    assert stage.runner.is_idle()
