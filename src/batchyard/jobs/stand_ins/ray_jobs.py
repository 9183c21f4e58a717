"""Controller of RayJobs: creates a RayCluster and the Job that submits the Ray job, and reports how the Ray job ends.

It takes the steps of KubeRay's operator (ray-operator/controllers/ray/rayjob_controller.go) in the mode `K8sJobMode`,
with its states, reasons and messages. The state of the Ray job comes from the submitting Job: the Ray job is PENDING
until the pod of this Job runs, then RUNNING, and its end is in the report of this pod. In contrast to KubeRay, a
submitting Job that still runs when the RayJob has failed is deleted, because it would wait for a dashboard forever.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import ApiError, InvalidObject
from batchyard.api.meta import Key, Obj, controller_of, is_true, with_path, with_status
from batchyard.api.times import format_second, parse_time
from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import uid_for
from batchyard.client.local import generated_name
from batchyard.interfaces.client import Create, Delete, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobs.stand_ins import ray_nodes
from batchyard.jobs.stand_ins.new_objects import complete_object, controlled_by
from batchyard.jobs.stand_ins.ray import READY_STATE
from batchyard.jobs.stand_ins.ray_nodes import RAY_CLUSTER, RAY_JOB, InvalidRayObject
from batchyard.jobs.stand_ins.ray_pods import RayCluster
from batchyard.jobs.stand_ins.ray_submission import JOB_NAME_LENGTH_MAX, RayJob, read_report

#: After this time, the controller tries again what others prevent, such as a Job with the same name.
_RETRY_PERIOD: Final = 30 * SECOND
# Values of `jobDeploymentStatus`; that of a new RayJob is ''.
_INITIALIZING: Final = "Initializing"
_RUNNING: Final = "Running"
_COMPLETE: Final = "Complete"
_FAILED: Final = "Failed"
_VALIDATION_FAILED: Final = "ValidationFailed"
_SUSPENDING: Final = "Suspending"
_SUSPENDED: Final = "Suspended"
_RETRYING: Final = "Retrying"
# Reasons of a failure.
_DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
_SUBMISSION_FAILED: Final = "SubmissionFailed"
_APPLICATION_FAILED: Final = "AppFailed"
#: The reasons of Events about rejected writes, and the objects that the messages name, by kind.
_REJECTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "RayCluster": ("FailedToCreateRayCluster", "Failed to create RayCluster"),
    "Job": ("FailedToCreateRayJobSubmitter", "Failed to create new Kubernetes Job"),
    "Service": ("FailedToCreateService", "Failed to create the service"),
}
#: The fields of the status that describe one run, which the end of a suspension or a retry removes.
_RUN_FIELDS: Final = (
    *("rayClusterStatus", "rayClusterName", "dashboardURL", "jobId", "message", "reason", "rayJobInfo", "jobStatus"),
)


class RayJobController:
    """Creates and deletes the RayClusters and submitting Jobs of RayJobs, and writes the statuses of RayJobs."""

    name = "rayjob-controller"
    rank = 0
    kinds: Sequence[str] = (RAY_JOB, RAY_CLUSTER, scheme.JOB, scheme.SERVICE)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of a changed RayJob, or of the RayJob that controls a changed RayCluster, Job or Service."""
        key = event.key
        if key.kind == RAY_JOB:
            return (key,)
        owner = controller_of(event.obj)
        if owner is None or owner["kind"] != "RayJob" or not owner["apiVersion"].startswith("ray.io/"):
            return ()
        return (Key(RAY_JOB, key.namespace, owner["name"]),)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Create or delete what a RayJob needs in its state, and update its status."""
        obj = reader.get(key)
        if obj is None or "deletionTimestamp" in obj["metadata"] or ray_nodes.is_managed_elsewhere(obj):
            return ReconcileResult()
        job_pass = _RayJobPass(key, obj, reader, now)
        part = "Metadata"
        try:
            ray_nodes.check_name(key.name, "RayJob", JOB_NAME_LENGTH_MAX)
            part = "Spec"
            job = RayJob(obj)
        except InvalidRayObject as error:
            prefix = "The RayJob metadata is invalid: " if part == "Metadata" else ""
            return job_pass.reject(f"InvalidRayJob{part}", f"{prefix}{error}")
        return job_pass.run(job)


class _RayJobPass:
    """One reconcile of a RayJob: the new status, the writes and the Events."""

    def __init__(self, key: Key, obj: Obj, reader: Reader, now: Instant) -> None:
        self._key, self._obj, self._reader, self._now = key, obj, reader, now
        self._old: Mapping[str, Any] = obj.get("status") or {}
        self._status: dict[str, Any] = dict(self._old)
        self._result = ReconcileResult(event_if_rejected=partial(_rejection_event, key))

    @property
    def _state(self) -> str:
        return self._status.get("jobDeploymentStatus") or ""

    def reject(self, reason: str, message: str) -> ReconcileResult:
        """Return the result for an invalid RayJob: it ends without its RayCluster and its submitting Job."""
        if self._state in (_COMPLETE, _FAILED, _VALIDATION_FAILED):
            return self._result
        self._delete_run()
        fields = {"jobDeploymentStatus": _VALIDATION_FAILED, "reason": _VALIDATION_FAILED, "message": message}
        self._status |= fields
        self._result.events.append(EventRecord(self._key, "Warning", reason, f"{self._key}: {message}"))
        return self._finish()

    def run(self, job: RayJob) -> ReconcileResult:
        """Return the result for a valid RayJob."""
        steps: Mapping[str, Callable[[RayJob], None]] = {
            "": self._initialize,
            _INITIALIZING: self._start,
            _RUNNING: self._observe,
            _SUSPENDING: self._release,
            _RETRYING: self._release,
            _SUSPENDED: self._resume,
        }
        step = steps.get(self._state)
        if step is not None:
            step(job)
            self._count_end(job)
        elif self._state in (_COMPLETE, _FAILED):
            self._shut_down(job)
        return self._finish()

    def _finish(self) -> ReconcileResult:
        if self._status != self._old:
            self._result.writes.append(UpdateStatus(with_status(self._obj, self._status)))
        return self._result

    # --- states ---

    def _initialize(self, job: RayJob) -> None:
        job_id = job.fields.job_id or self._new_name("job")
        self._status.setdefault("jobId", job_id)
        self._status.setdefault("rayClusterName", self._new_name("cluster"))
        self._status |= {"jobDeploymentStatus": _INITIALIZING, "startTime": format_second(self._now)}

    def _start(self, job: RayJob) -> None:
        if self._is_suspended_or_late(job):
            return
        seconds, field = job.fields.pre_running_deadline_seconds, "preRunningDeadlineSeconds"
        if self._is_past(seconds, field, "PreRunningDeadlineExceeded"):
            return
        cluster = self._find_or_create_cluster(job)
        if cluster is None or (cluster.obj.get("status") or {}).get("state") != READY_STATE:
            return
        service_key = Key(scheme.SERVICE, self._key.namespace, cluster.head_service_name)
        service = self._reader.get(service_key) or {"spec": {}}
        ports = [each["port"] for each in service["spec"].get("ports") or () if each.get("name") == "dashboard"]
        if not ports:
            self._warn("FailedToCreateRayJobSubmitter", f"The service {service_key} has no port dashboard")
            return
        self._status["dashboardURL"] = f"{cluster.head_address}:{ports[0]}"
        if self._create_submitter(job):
            self._status |= {"jobDeploymentStatus": _RUNNING, "jobStatus": "PENDING"}

    def _observe(self, job: RayJob) -> None:
        """Update the state of the Ray job from the submitting Job."""
        if self._is_suspended_or_late(job):
            return
        cluster = self._find_or_create_cluster(job)
        if cluster is None:
            return
        self._sync_head_service(job, cluster)
        submitter = self._find_own(scheme.JOB, self._key.name)
        if submitter is None:
            self._fail_submission("NotFound", f"The Job {self._key} does not exist")
        elif is_true(submitter, "Failed"):
            conditions = submitter["status"]["conditions"]
            condition = next(each for each in conditions if each["type"] == "Failed")
            self._fail_submission(condition.get("reason", ""), condition.get("message", ""))
        elif is_true(submitter, "Complete"):
            self._end(job, submitter)
        elif (submitter.get("status") or {}).get("ready"):
            self._status["jobStatus"] = "RUNNING"

    def _end(self, job: RayJob, submitter: Obj) -> None:
        """Set the state of the Ray job after the submitting Job has succeeded."""
        pods = controlled_by(submitter, scheme.POD, self._reader)
        report = read_report(pods, has_own_command=job.has_own_command)
        if report is None:
            self._fail(_APPLICATION_FAILED, "The submitter has completed without a report about the Ray job.")
            return
        times = {"startTime": report.start_time, "endTime": report.end_time}
        self._status["rayJobInfo"] = {name: time for name, time in times.items() if time}
        self._status |= {"jobStatus": report.state, "message": report.message, "jobDeploymentStatus": _COMPLETE}
        if report.state == "FAILED":
            self._status |= {"jobDeploymentStatus": _FAILED, "reason": _APPLICATION_FAILED}

    def _release(self, job: RayJob) -> None:
        """Delete the run of a RayJob that is being suspended or retried, and wait until it is gone."""
        if self._delete_run():
            return
        is_retry = self._state == _RETRYING
        for name in _RUN_FIELDS:
            self._status.pop(name, None)
        self._status["jobDeploymentStatus"] = "" if is_retry else _SUSPENDED

    def _resume(self, job: RayJob) -> None:
        if not job.fields.suspend:
            self._status["jobDeploymentStatus"] = ""

    def _shut_down(self, job: RayJob) -> None:
        """Delete the RayCluster of a finished RayJob after its TTL, and at once a submitting Job that still runs."""
        submitter = self._find_own(scheme.JOB, self._key.name)
        if submitter is not None and not (is_true(submitter, "Complete") or is_true(submitter, "Failed")):
            self._delete(submitter, "DeletedRayJobSubmitter", "Deleted submitter K8s Job")
        if not job.fields.shutdown_after_job_finishes:
            return
        end_time = self._status.get("endTime")
        due = parse_time(end_time) + job.fields.ttl_seconds_after_finished * SECOND if end_time else self._now
        if due > self._now:
            self._requeue_at(due)
            return
        cluster = self._find_own(RAY_CLUSTER, self._status.get("rayClusterName") or "")
        if cluster is not None:
            self._delete(cluster, "DeletedRayCluster", "Deleted cluster")

    def _count_end(self, job: RayJob) -> None:
        """Count a run that has ended; a failed one is retried within the backoff limit."""
        has_failed = self._state == _FAILED
        has_succeeded = self._state == _COMPLETE and self._status.get("jobStatus") == "SUCCEEDED"
        failed_count = self._status.get("failed", 0) + has_failed
        self._status |= {"failed": failed_count, "succeeded": self._status.get("succeeded", 0) + has_succeeded}
        is_retryable = has_failed and self._status.get("reason") != _DEADLINE_EXCEEDED
        if is_retryable and failed_count <= (job.fields.backoff_limit or 0):
            self._status["jobDeploymentStatus"] = _RETRYING
        elif self._state in (_COMPLETE, _FAILED):
            self._status["endTime"] = format_second(self._now)

    # --- checks ---

    def _is_suspended_or_late(self, job: RayJob) -> bool:
        if job.fields.suspend:
            self._status["jobDeploymentStatus"] = _SUSPENDING
            return True
        return self._is_past(job.fields.active_deadline_seconds, "activeDeadlineSeconds", _DEADLINE_EXCEEDED)

    def _is_past(self, seconds: int | None, field: str, reason: str) -> bool:
        """Fail the RayJob if a deadline has passed since its start; otherwise request a reconcile at the deadline."""
        start_time = self._status.get("startTime")
        if seconds is None or not start_time:
            return False
        due = parse_time(start_time) + seconds * SECOND
        if due > self._now:
            self._requeue_at(due)
            return False
        start_text = start_time.replace("T", " ").replace("Z", " +0000 UTC")
        title = f"{field[0].upper()}{field[1:]}"
        self._fail(reason, f"The RayJob has passed the {field}. StartTime: {start_text}. {title}: {seconds}")
        return True

    def _fail_submission(self, reason: str, message: str) -> None:
        self._status["jobStatus"] = "FAILED"
        self._fail(_SUBMISSION_FAILED, f"Job submission has failed. Reason: {reason}. Message: {message}")

    def _fail(self, reason: str, message: str) -> None:
        self._status |= {"jobDeploymentStatus": _FAILED, "reason": reason, "message": message}

    # --- objects ---

    def _find_or_create_cluster(self, job: RayJob) -> RayCluster | None:
        """Return the RayCluster; None if it is being created or deleted, or has become invalid."""
        name = self._status["rayClusterName"]
        obj = self._find_own(RAY_CLUSTER, name)
        if obj is None:
            message = f"Created RayCluster {self._key.namespace}/{name}"
            self._add(Create(job.new_cluster(name)), "CreatedRayCluster", message)
            return None
        if obj.get("status"):
            self._status["rayClusterStatus"] = obj["status"]
        try:
            return None if "deletionTimestamp" in obj["metadata"] else RayCluster(obj)
        except InvalidRayObject:
            return None  # the controller of RayClusters reports it

    def _create_submitter(self, job: RayJob) -> bool:
        """Add the creation of the submitting Job unless it exists; return False if it cannot be created."""
        reason, prefix = _REJECTIONS["Job"]
        if self._find_own(scheme.JOB, self._key.name) is not None:
            return True
        if self._find(scheme.JOB, self._key.name) is not None:
            self._warn(reason, f"{prefix} {self._key}: another Job has this name")
            return False
        try:
            manifest = complete_object(job.new_submitter(self._status["dashboardURL"], self._status["jobId"]))
        except InvalidObject as error:
            self._warn(reason, f"{prefix} {self._key}: {error}")
            return False
        self._add(Create(manifest), "CreatedRayJobSubmitter", f"Created Kubernetes Job {self._key}")
        return True

    def _sync_head_service(self, job: RayJob, cluster: RayCluster) -> None:
        manifest = job.new_head_service(cluster)
        name = f"{self._key.namespace}/{manifest['metadata']['name']}"
        service = self._find(scheme.SERVICE, manifest["metadata"]["name"])
        selector = manifest["spec"]["selector"]
        if service is None:
            try:
                write = Create(complete_object(manifest))
            except InvalidObject as error:
                self._warn("FailedToCreateService", f"Failed to create the service {name}, {error}")
                return
            self._add(write, "CreatedService", f"Created the service {name}")
        elif self._is_own(service) and service["spec"].get("selector") != selector:
            updated = with_path(service, ("spec", "selector"), selector)
            self._add(Update(updated), "UpdatedService", f"Updated the service {name}")

    def _delete_run(self) -> bool:
        """Add the deletions of the RayCluster and of the submitting Job; return whether one of them still exists."""
        cluster = self._find_own(RAY_CLUSTER, self._status.get("rayClusterName") or "")
        submitter = self._find_own(scheme.JOB, self._key.name)
        if cluster is not None:
            self._delete(cluster, "DeletedRayCluster", "Deleted cluster")
        if submitter is not None:
            self._delete(submitter, "DeletedRayJobSubmitter", "Deleted submitter K8s Job")
        return cluster is not None or submitter is not None

    def _delete(self, obj: Obj, reason: str, text: str) -> None:
        metadata = obj["metadata"]
        if "deletionTimestamp" not in metadata:
            kind = RAY_CLUSTER if obj["kind"] == "RayCluster" else scheme.JOB
            write = Delete(Key(kind, self._key.namespace, metadata["name"]), uid=metadata["uid"])
            self._add(write, reason, f"{text} {self._key.namespace}/{metadata['name']}")

    def _find(self, kind: str, name: str) -> Obj | None:
        return self._reader.get(Key(kind, self._key.namespace, name))

    def _find_own(self, kind: str, name: str) -> Obj | None:
        """Return an object that the RayJob controls; None if it does not exist or belongs to others."""
        obj = self._find(kind, name)
        return obj if obj is not None and self._is_own(obj) else None

    def _is_own(self, obj: Obj) -> bool:
        owner = controller_of(obj)
        return owner is not None and owner["uid"] == self._obj["metadata"]["uid"]

    def _new_name(self, subject: str) -> str:
        uid = self._obj["metadata"]["uid"]
        return generated_name(f"{self._key.name}-", uid_for(0, uid, subject, str(self._now)))

    def _requeue_at(self, instant: Instant) -> None:
        self._result.requeue_at = min(instant, self._result.requeue_at or instant)

    def _add(self, write: Write, reason: str, message: str) -> None:
        self._result.writes.append(write)
        self._result.events.append(EventRecord(self._key, "Normal", reason, message))

    def _warn(self, reason: str, message: str) -> None:
        """Record a warning Event, and try again after a while, because nothing else may trigger a reconcile."""
        self._requeue_at(self._now + _RETRY_PERIOD)
        self._result.events.append(EventRecord(self._key, "Warning", reason, message))


def _rejection_event(key: Key, write: Write, error: ApiError) -> EventRecord | None:
    if not isinstance(write, Create):
        return None
    reason, text = _REJECTIONS[write.obj["kind"]]
    name = f"{key.namespace}/{write.obj['metadata']['name']}"
    return EventRecord(key, "Warning", reason, f"{text} {name}: {error}")
