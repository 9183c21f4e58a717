"""CronJob controller: starts Jobs at the scheduled times, and deletes old finished ones.

A Job is created first. When the Job exists, the next reconcile adds it to the status of the CronJob, by the scheduled
time in its annotation. So neither a rejected creation nor a restart of the platform loses or doubles a run.

Source: pkg/controller/cronjob of Kubernetes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme
from batchyard.api.errors import ApiError, NamespaceTerminating
from batchyard.api.times import format_time, parse_time
from batchyard.api.validation.apps import ScheduleError
from batchyard.apps.children import creation_time
from batchyard.apps.cron_schedule import CronSchedule, find_zone, format_local_time, format_rfc1123, parse_schedule
from batchyard.base.instant import MILLISECOND, MINUTE, SECOND, Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult

SCHEDULED_AT: Final = "batch.kubernetes.io/cronjob-scheduled-timestamp"
#: The time after a scheduled time at which the next reconcile starts its Job.
_REQUEUE_DELAY: Final = 100 * MILLISECOND
_MANY_MISSED: Final = 100
_TOO_MANY_MISSED: Final = (
    "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
)
_ALREADY_ACTIVE: Final = "Not starting job because prior execution is running and concurrency policy is Forbid"


class DueTime(NamedTuple):
    """The latest scheduled time that is not later than now, and how many scheduled times passed without a Job."""

    earliest: Instant
    latest: Instant | None
    missed_count: int


class CronProblem(NamedTuple):
    """Why a CronJob starts no Job, or an unexpected Job that it has."""

    reason: str
    message: str
    #: The scheduled time of the Job that does not start; 0 if the problem does not depend on a time.
    scheduled_time: Instant


class CronJobController:
    """Controller that reconciles CronJobs with their Jobs."""

    name = "cronjob-controller"
    rank = 0
    kinds = (scheme.CRON_JOB, scheme.JOB)

    def __init__(self) -> None:
        #: The problems at the last reconcile of a CronJob, so that each problem has one Event.
        self._problems: dict[meta.Key, frozenset[CronProblem]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of a changed CronJob, or of the CronJobs that control or controlled a changed Job."""
        if event.key.kind == scheme.CRON_JOB:
            if event.type is EventType.DELETED:
                self._problems.pop(event.key, None)
            return (event.key,)
        owners = [meta.controller_of(obj) for obj in (event.obj, event.old) if obj is not None]
        names = dict.fromkeys(owner["name"] for owner in owners if owner is not None and owner["kind"] == "CronJob")
        return [meta.Key(scheme.CRON_JOB, event.key.namespace, name) for name in names]

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update the status from the Jobs, delete old Jobs, and start the Job that is due."""
        cron_job = reader.get(key)
        if cron_job is None:
            return ReconcileResult()
        owned = reader.owned_by(cron_job["metadata"]["uid"], key.namespace)
        jobs = [obj for obj in owned if meta.group_kind(obj) == scheme.JOB and meta.controller_of(obj) is not None]
        sync = CronJobSync(cron_job, jobs, now, self._problems.get(key, frozenset()))
        sync.reconcile(reader)
        self._problems[key] = frozenset(sync.problems)
        return sync.outcome


class CronJobSync:
    """One reconcile of a CronJob: its writes and Events, and the status so far."""

    def __init__(
        self,
        cron_job: meta.Obj,
        jobs: Sequence[meta.Obj],
        now: Instant,
        known_problems: frozenset[CronProblem] = frozenset(),
    ) -> None:
        self._cron_job = cron_job
        self._key = meta.key_of(cron_job)
        self._jobs = jobs
        self._now = now
        self._known_problems = known_problems
        self._spec: Mapping[str, Any] = cron_job["spec"]
        self._status: dict[str, Any] = dict(cron_job.get("status") or {})
        self.problems: set[CronProblem] = set()
        self.outcome = ReconcileResult(independent=True)

    def reconcile(self, reader: Reader) -> None:
        """Compute the writes, the Events and the time of the next reconcile."""
        self._delete_old_jobs()
        for job in self._jobs:
            self._record_job(job)
        self._drop_missing_jobs(reader)
        if "deletionTimestamp" not in self._cron_job["metadata"]:
            self._start(reader)
        if not self._status.get("active"):
            self._status.pop("active", None)
        if self._status != (self._cron_job.get("status") or {}):
            self.outcome.writes.append(UpdateStatus(meta.with_status(self._cron_job, self._status)))

    # The status.

    def _record_job(self, job: meta.Obj) -> None:
        """Record a Job as active or completed; a Job of a later scheduled time than the last is a new run."""
        name, finish = job["metadata"]["name"], finished_condition(job)
        is_active = any(each["uid"] == job["metadata"]["uid"] for each in self._status.get("active") or ())
        if self._is_new_run(job):
            self._status["lastScheduleTime"] = format_time(parse_time(meta.annotation(job, SCHEDULED_AT) or ""))
            self._status["active"] = [*(self._status.get("active") or ()), _reference(job)]
            is_active = True
        if finish is None:
            if not is_active and "deletionTimestamp" not in job["metadata"]:
                message = f"Saw a job that the controller did not create or forgot: {name}"
                self._report("UnexpectedJob", message)
            return
        if is_active:
            self._deactivate(job)
            self._add_event("Normal", "SawCompletedJob", f"Saw completed job: {name}, condition: {finish}")
        completion_time = (job.get("status") or {}).get("completionTime")
        if finish == "Complete" and completion_time:
            last_time = self._status.get("lastSuccessfulTime")
            if last_time is None or parse_time(completion_time) > parse_time(last_time):
                self._status["lastSuccessfulTime"] = completion_time

    def _is_new_run(self, job: meta.Obj) -> bool:
        scheduled_time, last_time = meta.annotation(job, SCHEDULED_AT), self._status.get("lastScheduleTime")
        if scheduled_time is None or "deletionTimestamp" in job["metadata"]:
            return False
        return last_time is None or parse_time(scheduled_time) > parse_time(last_time)

    def _drop_missing_jobs(self, reader: Reader) -> None:
        uids = {job["metadata"]["uid"] for job in self._jobs}
        for reference in self._status.get("active") or ():
            key = meta.Key(scheme.JOB, self._key.namespace, reference["name"])
            if reference["uid"] not in uids and reader.get(key) is None:
                self._add_event("Normal", "MissingJob", f"Active job went missing: {reference['name']}")
                self._drop_reference(reference["uid"])

    def _deactivate(self, job: meta.Obj) -> None:
        self._drop_reference(job["metadata"]["uid"])

    def _drop_reference(self, uid: str) -> None:
        self._status["active"] = [each for each in self._status.get("active") or () if each["uid"] != uid]

    # Old Jobs.

    def _delete_old_jobs(self) -> None:
        for finish, field in (("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
            limit = self._spec.get(field)
            finished_jobs = [job for job in self._jobs if finished_condition(job) == finish]
            if limit is not None:
                finished_jobs.sort(key=_by_start_time)
                for job in finished_jobs[: max(0, len(finished_jobs) - limit)]:
                    self._delete(job)

    def _delete(self, job: meta.Obj) -> None:
        if "deletionTimestamp" in job["metadata"]:
            return
        event = EventRecord(self._key, "Normal", "SuccessfulDelete", f"Deleted job {job['metadata']['name']}")
        self.outcome.add(Delete(meta.key_of(job), uid=job["metadata"]["uid"]), [event])
        self._deactivate(job)

    # New Jobs.

    def _start(self, reader: Reader) -> None:
        """Start the Job that is due, and schedule the next reconcile."""
        schedule = self._parse_schedule()
        if schedule is None or self._spec.get("suspend"):
            return
        due = due_time(self._cron_job, self._status, schedule, self._now, self._earliest_start())
        if due.latest is not None:
            self._start_at(due, reader)
        self.outcome.requeue_at = self._next_reconcile_time(schedule)

    def _start_at(self, due: DueTime, reader: Reader) -> None:
        scheduled_time = due.latest
        assert scheduled_time is not None
        last_time, active = self._status.get("lastScheduleTime"), self._status.get("active") or ()
        if last_time is not None and parse_time(last_time) == scheduled_time:
            return
        deadline = self._spec.get("startingDeadlineSeconds")
        if deadline is not None and scheduled_time + deadline * SECOND < self._now:
            self._report("MissSchedule", f"Missed scheduled time to start a job: {format_rfc1123(scheduled_time)}")
            return
        name = job_name(self._cron_job, scheduled_time)
        if any(reference["name"] == name for reference in active):
            return
        if self._spec.get("concurrencyPolicy") == "Forbid" and active:
            self._report("JobAlreadyActive", _ALREADY_ACTIVE, scheduled_time)
            return
        if due.missed_count > _MANY_MISSED:
            self._report("TooManyMissedTimes", _TOO_MANY_MISSED, scheduled_time)
        if self._spec.get("concurrencyPolicy") == "Replace":
            for job in list(self._active_jobs()):
                self._delete(job)
        if reader.get(meta.Key(scheme.JOB, self._key.namespace, name)) is None:
            event = EventRecord(self._key, "Normal", "SuccessfulCreate", f"Created job {name}")
            self.outcome.add(Create(new_job(self._cron_job, scheduled_time)), [event])
            self.outcome.event_if_rejected = partial(_rejection_event, self._key)

    def _active_jobs(self) -> Iterator[meta.Obj]:
        uids = {reference["uid"] for reference in self._status.get("active") or ()}
        return (job for job in self._jobs if job["metadata"]["uid"] in uids)

    def _parse_schedule(self) -> CronSchedule | None:
        text, zone_name = self._spec["schedule"], self._spec.get("timeZone")
        try:
            find_zone(zone_name)
        except ValueError as error:
            self._report("UnknownTimeZone", f'invalid timeZone: "{zone_name}": {error}')
            return None
        try:
            return parse_schedule(text, zone_name)
        except ScheduleError as error:
            self._report("UnparseableSchedule", f'unparseable schedule: "{text}" : {error}')
            return None

    def _earliest_start(self) -> Instant | None:
        deadline = self._spec.get("startingDeadlineSeconds")
        return None if deadline is None else self._now - deadline * SECOND

    def _next_reconcile_time(self, schedule: CronSchedule) -> Instant | None:
        due = due_time(self._cron_job, self._status, schedule, self._now)
        base = due.latest if due.latest is not None else due.earliest if not due.missed_count else self._now
        next_time = schedule.next_time(base)
        while next_time is not None and next_time + _REQUEUE_DELAY <= self._now:
            next_time = schedule.next_time(next_time)
        return None if next_time is None else next_time + _REQUEUE_DELAY

    # Events.

    def _add_event(self, event_type: str, reason: str, message: str) -> None:
        self.outcome.events.append(EventRecord(self._key, event_type, reason, message))

    def _report(self, reason: str, message: str, scheduled_time: Instant = 0) -> None:
        """Report a problem by an Event, unless the last reconcile reported it for the same scheduled time."""
        problem = CronProblem(reason, message, scheduled_time)
        self.problems.add(problem)
        if problem not in self._known_problems:
            self._add_event("Normal" if reason == "JobAlreadyActive" else "Warning", reason, message)


def due_time(
    cron_job: meta.Obj,
    status: Mapping[str, Any],
    schedule: CronSchedule,
    now: Instant,
    earliest_start: Instant | None = None,
) -> DueTime:
    """Return the latest scheduled time up to now since the last run, or since `earliest_start` if that is later.

    The number of missed times is an estimate from the distance of the first two.
    """
    last_time = status.get("lastScheduleTime")
    earliest = creation_time(cron_job) if last_time is None else parse_time(last_time)
    if earliest_start is not None:
        earliest = max(earliest, earliest_start)
    first = schedule.next_time(earliest)
    second = None if first is None else schedule.next_time(first)
    if first is None or now < first:
        return DueTime(earliest, None, 0)
    if second is None or now < second:
        return DueTime(earliest, first, 0)
    period = max(SECOND, second - first)
    missed_count = (now - first) // period + 1
    latest, time = None, schedule.next_time(first + (missed_count - 2) * period)
    while time is not None and time <= now:
        latest, time = time, schedule.next_time(time)
    return DueTime(earliest, latest, missed_count)


def job_name(cron_job: meta.Obj, scheduled_time: Instant) -> str:
    """Return the name of the Job of a scheduled time: the CronJob's name and the minutes since 1970."""
    return f"{cron_job['metadata']['name']}-{scheduled_time // MINUTE}"


def new_job(cron_job: meta.Obj, scheduled_time: Instant) -> meta.Obj:
    """Return the Job of a scheduled time, with the labels and annotations of the CronJob's Job template."""
    template = cron_job["spec"]["jobTemplate"]
    template_metadata = template.get("metadata") or {}
    annotations = {
        **(template_metadata.get("annotations") or {}),
        SCHEDULED_AT: format_local_time(scheduled_time, cron_job["spec"].get("timeZone")),
    }
    labels = template_metadata.get("labels")
    metadata = {
        "name": job_name(cron_job, scheduled_time),
        "namespace": cron_job["metadata"].get("namespace", ""),
        **({"labels": labels} if labels else {}),
        "annotations": annotations,
        "ownerReferences": [meta.controller_reference(cron_job)],
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]}


def finished_condition(job: meta.Obj) -> str | None:
    """Return `Complete` or `Failed` for a finished Job, else None."""
    return next((each for each in ("Complete", "Failed") if meta.is_true(job, each)), None)


def _reference(job: meta.Obj) -> dict[str, str]:
    metadata = job["metadata"]
    return {
        "kind": "Job",
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "uid": metadata["uid"],
        "apiVersion": "batch/v1",
        "resourceVersion": metadata.get("resourceVersion", ""),
    }


def _by_start_time(job: meta.Obj) -> tuple[bool, Instant, str]:
    start_time = (job.get("status") or {}).get("startTime")
    return start_time is None, parse_time(start_time) if start_time else 0, job["metadata"]["name"]


def _rejection_event(key: meta.Key, write: Write, error: ApiError) -> EventRecord | None:
    if isinstance(error, NamespaceTerminating):
        return None
    if isinstance(write, Delete):
        return EventRecord(key, "Warning", "FailedDelete", f"Deleted job: {error}")
    return EventRecord(key, "Warning", "FailedCreate", f"Error creating job: {error}")
